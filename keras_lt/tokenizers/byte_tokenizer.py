from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from keras_lt.tokenizers.tokenizer import Tokenizer, to_id_array, to_utf8


@keras.saving.register_keras_serializable(package="keras_lt")
class ByteTokenizer(Tokenizer):
    """Turns text into ids, the bytes of its UTF-8 form, and back.

    It knows every text. A character of ASCII is one id; any other takes two to four.

    Example:

    >>> tokenizer = keras_lt.tokenizers.ByteTokenizer()
    >>> tokenizer.encode("né")
    array([110, 195, 169], dtype=int32)
    >>> tokenizer.decode([110, 195, 169])
    'né'
    """

    @property
    def vocabulary_size(self) -> int:
        """Number of ids: 256."""
        return 256

    def encode(self, text: str) -> np.ndarray:
        """Turns text into ids.

        Args:
            text: String.

        Returns:
            int32 array of rank 1, as long as the UTF-8 form of the text.

        Raises:
            ValueError: If the text holds a lone surrogate (half of a character), which has no UTF-8 form.
        """
        return np.frombuffer(to_utf8("text", text), "uint8").astype("int32")

    def decode_bytes(self, ids: Sequence[int] | np.ndarray | Any) -> bytes:
        """Turns ids into bytes, one an id.

        Args:
            ids: Integers of rank 1: a list, an array or a tensor.

        Returns:
            Bytes. They may begin and end within a character.

        Raises:
            ValueError: If the ids are not integers of rank 1, or not all of them lie in [0, 256).
        """
        return to_id_array(ids, self.vocabulary_size).astype("uint8").tobytes()

    def __repr__(self) -> str:
        return "<ByteTokenizer vocabulary_size=256>"
