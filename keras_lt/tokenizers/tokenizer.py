import json
import os
from typing import Any, Self

import keras
import numpy as np

from keras_lt.backend.checks import check_ids


class Tokenizer:
    """Base of the tokenizers: their file, and when two are equal."""

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
            A tokenizer of this class.

        Raises:
            ValueError: If the file holds something else.
        """
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
            found = content["class_name"]
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{os.fspath(path)} must hold a {cls.__name__}. Received: no saved tokenizer") from None
        if found != cls.__name__:
            raise ValueError(f"{os.fspath(path)} must hold a {cls.__name__}. Received: a {found}")
        return cls.from_config(content["config"])

    def get_config(self) -> dict[str, Any]:
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a tokenizer from what `get_config` gives."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.get_config() == self.get_config()

    def __hash__(self) -> int:
        return hash((type(self), *self.get_config().values()))


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
