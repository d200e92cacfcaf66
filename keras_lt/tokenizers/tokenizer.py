import json
import os
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_lt.backend.checks import check_ids


@keras.saving.register_keras_serializable(package="keras_lt")
class Tokenizer:
    """Base of the tokenizers: text into ids and back, their file, and when two are equal.

    A subclass defines `vocabulary_size`, `encode` and `decode_bytes`, and `get_config` where its constructor takes
    arguments. The rest follows from these. `load` finds it when it is registered with `keras.saving`.

    Example:

    >>> @keras.saving.register_keras_serializable(package="example")
    ... class BitTokenizer(keras_lt.tokenizers.Tokenizer):
    ...     vocabulary_size = 2
    ...
    ...     def encode(self, text):
    ...         return np.unpackbits(np.frombuffer(text.encode(), "uint8")).astype("int32")
    ...
    ...     def decode_bytes(self, ids):
    ...         return np.packbits(ids).tobytes()
    >>> tokenizer = BitTokenizer()
    >>> tokenizer.encode("A")
    array([0, 1, 0, 0, 0, 0, 0, 1], dtype=int32)
    >>> tokenizer.decode([0, 1, 0, 0, 0, 0, 0, 1])
    'A'
    """

    @property
    def vocabulary_size(self) -> int:
        """Number of ids."""
        raise NotImplementedError(f"{type(self).__name__} must define `vocabulary_size`")

    def encode(self, text: str) -> np.ndarray:
        """Turns text into ids.

        Args:
            text: String.

        Returns:
            int32 array of rank 1.

        Raises:
            ValueError: If the text has no ids.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `encode`")

    def decode_bytes(self, ids: Sequence[int] | np.ndarray | Any) -> bytes:
        """Turns ids into the UTF-8 bytes of their text.

        Where text comes piece by piece, these tell a character whose last bytes are still to come from a wrong one.

        Args:
            ids: Integers of rank 1: a list, an array or a tensor.

        Returns:
            The bytes of all ids, joined. They may begin and end within a character.

        Raises:
            ValueError: If the ids are not integers of rank 1, or not all of them lie in [0, vocabulary_size).
        """
        raise NotImplementedError(f"{type(self).__name__} must define `decode_bytes`")

    def decode(self, ids: Sequence[int] | np.ndarray | Any) -> str:
        """Turns ids into text.

        Args:
            ids: Integers of rank 1: a list, an array or a tensor.

        Returns:
            String. Bytes that are no UTF-8, such as a part of a character, become U+FFFD, the replacement character.

        Raises:
            ValueError: If the ids are not integers of rank 1, or not all of them lie in [0, vocabulary_size).
        """
        return self.decode_bytes(ids).decode("utf-8", errors="replace")

    def save(self, path: str | os.PathLike) -> None:
        """Writes the tokenizer to a small JSON file, whole or not at all.

        Args:
            path: Path of the file, in a directory that exists.
        """
        content = json.dumps(keras.saving.serialize_keras_object(self), indent=2, ensure_ascii=False)
        unfinished = f"{os.fspath(path)}.{os.getpid()}.tmp"
        try:
            with open(unfinished, "w", encoding="utf-8") as file:
                file.write(content + "\n")
            os.replace(unfinished, path)
        finally:
            if os.path.exists(unfinished):
                os.remove(unfinished)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads a tokenizer that `save` wrote.

        Args:
            path: Path of the file.

        Returns:
            A tokenizer of this class or of a subclass that is registered with `keras.saving`: `Tokenizer.load` reads
            whatever tokenizer the file holds.

        Raises:
            ValueError: If the file holds something else.
        """
        expected = f"{os.fspath(path)} must hold a {cls.__name__}"
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
            name, registered_name, _ = (content[key] for key in ("class_name", "registered_name", "config"))
            is_own = registered_name == keras.saving.get_registered_name(cls)
            found = cls if is_own else keras.saving.get_registered_object(registered_name)
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{expected}. Received: no saved tokenizer") from None
        if found is None:
            raise ValueError(
                f"{expected}. Received: a {name}, which is not known here. Import the module that defines it; "
                f"it has to be registered as {registered_name!r} with keras.saving.register_keras_serializable."
            )
        if not (isinstance(found, type) and issubclass(found, cls)):
            raise ValueError(f"{expected}. Received: a {name}")
        return keras.saving.deserialize_keras_object(content, custom_objects={registered_name: found})

    def get_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a tokenizer from what `get_config` gives."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.get_config() == self.get_config()

    def __hash__(self) -> int:
        return hash((type(self), self.vocabulary_size))


def check_text(name: str, text: Any) -> None:
    """Raise a `TypeError` unless a value is a string."""
    if not isinstance(text, str):
        raise TypeError(f"`{name}` must be a string. Received: {type(text).__name__}")


def to_utf8(name: str, text: Any) -> bytes:
    """The bytes of a text, or a `ValueError` that names a character that has none."""
    check_text(name, text)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"`{name}` holds {text[error.start]!r} at position {error.start}: a lone surrogate, half of a character. "
            "Read the text with its right encoding and without errors='surrogateescape'."
        ) from None


def to_id_array(ids: Any, vocabulary_size: int) -> np.ndarray:
    """The ids as an array of integers, or a `ValueError` if they are not integers of rank 1 below `vocabulary_size`."""
    if keras.ops.is_tensor(ids):
        ids = keras.ops.convert_to_numpy(ids)
    array = np.asarray(ids)
    if array.ndim != 1:
        raise ValueError(f"`ids` must have rank 1. Received: shape {array.shape}")
    if not array.size:
        return array.astype("int32")
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"`ids` must be integers. Received: {array.dtype}")
    check_ids(array, vocabulary_size, name="ids")
    return array
