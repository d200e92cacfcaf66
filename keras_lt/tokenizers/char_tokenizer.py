import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

import keras
import numpy as np

from keras_lt.backend.checks import check_ids


@keras.saving.register_keras_serializable(package="keras_lt")
class CharTokenizer:
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

    def decode(self, ids: Sequence[int] | np.ndarray | Any) -> str:
        """Turns ids into text.

        Args:
            ids: Integers of rank 1: a list, an array or a tensor.

        Returns:
            String of one character an id.

        Raises:
            ValueError: If the ids are not integers of rank 1, or not all of them lie in the vocabulary.
        """
        return self._code_points[to_id_array(ids, self.vocabulary_size)].tobytes().decode("utf-32-le")

    def save(self, path: str | os.PathLike) -> None:
        """Writes the tokenizer to a small JSON file, whole or not at all.

        Args:
            path: Path of the file, in a directory that exists.
        """
        save_tokenizer(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Reads a tokenizer that `save` wrote.

        Args:
            path: Path of the file.

        Returns:
            A `CharTokenizer`.

        Raises:
            ValueError: If the file holds something else.
        """
        return cls.from_config(load_config(cls, path))

    def get_config(self) -> dict[str, Any]:
        return {"vocabulary": self.vocabulary}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a tokenizer from what `get_config` gives."""
        return cls(**config)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.get_config() == self.get_config()

    def __hash__(self) -> int:
        return hash((type(self), self.vocabulary))

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


def save_tokenizer(tokenizer: Any, path: str | os.PathLike) -> None:
    """Writes a tokenizer as JSON to a new file that then takes the place of the one at `path`."""
    content = json.dumps(keras.saving.serialize_keras_object(tokenizer), indent=2, ensure_ascii=False)
    unfinished = f"{os.fspath(path)}.{os.getpid()}.tmp"
    try:
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(content + "\n")
        os.replace(unfinished, path)
    finally:
        if os.path.exists(unfinished):
            os.remove(unfinished)


def load_config(cls: type, path: str | os.PathLike) -> dict[str, Any]:
    """Reads the config that `save_tokenizer` wrote for a tokenizer of class `cls`."""
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
        found = content["class_name"]
    except (ValueError, TypeError, KeyError):
        raise ValueError(f"{os.fspath(path)} must hold a {cls.__name__}. Received: no saved tokenizer") from None
    if found != cls.__name__:
        raise ValueError(f"{os.fspath(path)} must hold a {cls.__name__}. Received: a {found}")
    return content["config"]
