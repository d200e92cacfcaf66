from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_lt.tokenizers.tokenizer import Tokenizer, check_text, to_id_array, to_utf8


@keras.saving.register_keras_serializable(package="keras_lt")
class CharTokenizer(Tokenizer):
    """Turns text into ids, one a character, and back.

    The id of a character is its place in the vocabulary. A character is what Python calls one: a Unicode code point,
    in the basic plane or outside it.

    Args:
        vocabulary: String of the characters, each once. The first has id 0. `from_text` finds it for a text.

    Raises:
        ValueError: If a character occurs twice, or is a lone surrogate (half of a character).

    Example:

    >>> tokenizer = keras_lt.tokenizers.CharTokenizer.from_text("hello")
    >>> tokenizer.vocabulary
    'ehlo'
    >>> tokenizer.encode("hole")
    array([1, 3, 2, 0], dtype=int32)
    >>> tokenizer.decode([1, 3, 2, 0])
    'hole'
    """

    def __init__(self, vocabulary: str) -> None:
        to_utf8("vocabulary", vocabulary)
        repeated = [character for character, count in Counter(vocabulary).items() if count > 1]
        if repeated:
            raise ValueError(f"Each character of `vocabulary` has to occur once. Received twice or more: {repeated}")
        self._vocabulary = vocabulary
        self._code_points = _to_code_points(vocabulary)
        # One id for each code point up to the largest known, and a last entry for all those above: -1 is "unknown".
        self._ids = np.full(int(self._code_points.max(initial=0)) + 2, -1, "int32")
        self._ids[self._code_points] = np.arange(len(vocabulary))

    @classmethod
    def from_text(cls, text: str) -> Self:
        """Makes a tokenizer of the distinct characters of a text, in the order of their code points.

        Args:
            text: String.

        Returns:
            A `CharTokenizer`.

        Raises:
            ValueError: If the text holds a lone surrogate.
        """
        to_utf8("text", text)
        return cls("".join(sorted(set(text))))

    @property
    def vocabulary(self) -> str:
        """String of all characters, in the order of their ids."""
        return self._vocabulary

    @property
    def vocabulary_size(self) -> int:
        """Number of ids."""
        return len(self._vocabulary)

    def encode(self, text: str) -> np.ndarray:
        """Turns text into ids.

        Args:
            text: String.

        Returns:
            int32 array of shape `(len(text),)`.

        Raises:
            ValueError: If a character is not in the vocabulary.
        """
        check_text("text", text)
        ids = self._ids[np.minimum(_to_code_points(text), len(self._ids) - 1)]
        if ids.min(initial=0) < 0:
            raise ValueError(self._describe_unknown(text, np.flatnonzero(ids < 0)))
        return ids

    def decode_bytes(self, ids: Sequence[int] | np.ndarray | Any) -> bytes:
        """Turns ids into the UTF-8 bytes of their text.

        Args:
            ids: Integers of rank 1: a list, an array or a tensor.

        Returns:
            Bytes of whole characters, one character an id.

        Raises:
            ValueError: If the ids are not integers of rank 1, or not all of them lie in the vocabulary.
        """
        code_points = self._code_points[to_id_array(ids, self.vocabulary_size)]
        return code_points.tobytes().decode("utf-32-le").encode("utf-8")

    def get_config(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary}

    def __repr__(self) -> str:
        shown = self.vocabulary if self.vocabulary_size <= 100 else self.vocabulary[:99] + "…"
        return f"<CharTokenizer vocabulary_size={self.vocabulary_size} vocabulary={shown!r}>"

    def _describe_unknown(self, text: str, positions: np.ndarray) -> str:
        distinct = list(dict.fromkeys(text[position] for position in positions))
        named = ", ".join(f"{character!r} (U+{ord(character):04X})" for character in distinct[:5])
        more = f" and {len(distinct) - 5} others" if len(distinct) > 5 else ""
        return (
            f"The text holds {named}{more}, at position {positions[0]} for the first time, which the vocabulary of "
            f"{self.vocabulary_size} characters lacks. Take such characters out of the text, make the tokenizer with "
            "CharTokenizer.from_text from a text that has them, or use ByteTokenizer, which encodes every text."
        )


def _to_code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", errors="surrogatepass"), "<u4")
