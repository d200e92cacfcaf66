import functools
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any, Self

import keras
import numpy as np

from keras_lt.backend.checks import check_positive_integer
from keras_lt.tokenizers.tokenizer import Tokenizer, check_text, to_id_array, to_utf8

# The library takes some 170 bytes of memory for each character that it encodes: long texts reach it in pieces.
_PIECE_LENGTH = 2**16

# The library first splits a text into words. None of these goes on from a character into white space after it, so a
# text that is cut there has the ids that it has as a whole.
_BORDER = re.compile(r"\S(?=[ \n])")


@keras.saving.register_keras_serializable(package="keras_lt")
class BytePairTokenizer(Tokenizer):
    """Turns text into ids for frequent pieces of text, and back.

    Text is first its UTF-8 bytes. Then each merge, in order, joins all neighbours of one pair into a longer token.
    Training finds those pairs: time and again the most frequent one in the text. Merges stay within a word, which is
    a run of letters, of digits or of other signs with the space before it, or a run of white space. Since every byte
    is a token, every text has ids, and `decode` gives it back exactly: nothing is normalized, no space is added.

    Ids are in this order: the special tokens, the 256 bytes, what the merges make. A special token is an id for what
    is no text, such as the end of a document. `encode` never gives one, so that text which happens to spell `<end>` is
    text and nothing else: take the id from `special_token_id` and put it where it belongs. `decode` shows it as its
    spelling. The first special token has id 0, which makes it the padding of layers with `mask_zero=True`.

    Training and encoding need the library `tokenizers`, `pip install "keras_lt[tokenizers]"`; decoding, saving and
    loading do not. Most often `train` makes the tokenizer; the constructor takes what it has found.

    Args:
        merges: Pairs of ids, in the order in which they are joined. A merge makes the next free id, or none of its own
            if its bytes are a token already.
        special_tokens: Strings, each once. Defaults to `()`.

    Raises:
        ValueError: If a merge is no pair of byte or earlier merged tokens or occurs twice, or a special token is empty,
            occurs twice or holds a lone surrogate (half of a character).
        TypeError: If `special_tokens` is one string, or holds something else than strings.

    Example:

    >>> tokenizer = keras_lt.tokenizers.BytePairTokenizer.train("low lower lowest", 260, special_tokens=["<end>"])
    >>> tokenizer
    <BytePairTokenizer vocabulary_size=260 special_tokens=['<end>']>
    >>> tokenizer.encode("low")
    array([258], dtype=int32)
    >>> [tokenizer.decode([token_id]) for token_id in tokenizer.encode(" lows")]
    [' low', 's']
    >>> document = np.append(tokenizer.encode("low"), tokenizer.special_token_id("<end>"))
    >>> document, tokenizer.decode(document)
    (array([258,   0]), 'low<end>')
    """

    def __init__(self, merges: Iterable[tuple[int, int]], special_tokens: Sequence[str] = ()) -> None:
        self._special_tokens = _check_special_tokens(special_tokens)
        self._merges = tuple(_to_pair(merge) for merge in merges)
        first = len(self._special_tokens)
        self._tokens = [token.encode("utf-8") for token in self._special_tokens] + _single_bytes()
        known, merged = set(self._tokens[first:]), set()
        for place, pair in enumerate(self._merges):
            if min(pair) < first or max(pair) >= len(self._tokens) or pair in merged:
                raise ValueError(
                    f"Each of `merges` must be a new pair of ids that are bytes or made by an earlier merge, from "
                    f"{first} to {len(self._tokens) - 1} at merge {place}. Received: {pair}"
                )
            merged.add(pair)
            token = self._tokens[pair[0]] + self._tokens[pair[1]]
            if token not in known:
                known.add(token)
                self._tokens.append(token)

    @classmethod
    def train(cls, texts: str | Iterable[str], vocabulary_size: int, special_tokens: Sequence[str] = ()) -> Self:
        """Makes a tokenizer of the most frequent pairs in a text. The same text gives the same tokenizer.

        Args:
            texts: String or iterable of strings. It is gone through once and need not be in memory.
            vocabulary_size: Integer, 256 plus the number of special tokens or more. The tokenizer has fewer ids where
                no pair that is left occurs twice.
            special_tokens: Strings, each once. Defaults to `()`.

        Returns:
            A `BytePairTokenizer`.

        Raises:
            ImportError: If the library `tokenizers` is not installed.
            ValueError: If `vocabulary_size` is too small, a text holds a lone surrogate, or a special token is wrong.
            TypeError: If a text is no string.
        """
        special_tokens = _check_special_tokens(special_tokens)
        check_positive_integer("vocabulary_size", vocabulary_size)
        if vocabulary_size < 256 + len(special_tokens):
            raise ValueError(
                f"`vocabulary_size` must be at least {256 + len(special_tokens)}: 256 bytes and {len(special_tokens)} "
                f"special tokens. Received: vocabulary_size={vocabulary_size}"
            )
        library = _import_library()
        trainer = library.trainers.BpeTrainer(
            vocab_size=int(vocabulary_size) - len(special_tokens),
            min_frequency=2,
            initial_alphabet=_byte_letters(),
            show_progress=False,
        )
        coder = _make_coder(library.models.BPE())
        coder.train_from_iterator(_training_pieces(texts), trainer)
        return cls(_read_merges(coder, len(special_tokens)), special_tokens)

    @property
    def merges(self) -> tuple[tuple[int, int], ...]:
        """Pairs of ids, in the order in which they are joined."""
        return self._merges

    @property
    def special_tokens(self) -> tuple[str, ...]:
        """Strings of the special tokens, in the order of their ids."""
        return self._special_tokens

    @property
    def vocabulary_size(self) -> int:
        """Number of ids."""
        return len(self._tokens)

    def special_token_id(self, token: str) -> int:
        """The id of a special token.

        Args:
            token: String, one of `special_tokens`.

        Returns:
            Integer.

        Raises:
            ValueError: If there is no such special token.
        """
        if token not in self._special_tokens:
            raise ValueError(f"`token` must be one of {list(self._special_tokens)}. Received: {token!r}")
        return self._special_tokens.index(token)

    def encode(self, text: str) -> np.ndarray:
        """Turns text into ids, none of them that of a special token.

        Args:
            text: String.

        Returns:
            int32 array of rank 1.

        Raises:
            ImportError: If the library `tokenizers` is not installed.
            ValueError: If the text holds a lone surrogate (half of a character), which has no UTF-8 form.
        """
        to_utf8("text", text)
        ids = [np.array(self._coder.encode(piece, add_special_tokens=False).ids, "int32") for piece in _pieces(text)]
        return np.concatenate([np.zeros(0, "int32"), *ids]) + np.int32(len(self._special_tokens))

    def decode_bytes(self, ids: Sequence[int] | np.ndarray | Any) -> bytes:
        """Turns ids into the UTF-8 bytes of their text.

        Args:
            ids: Integers of rank 1: a list, an array or a tensor.

        Returns:
            The bytes of all ids, joined. They may begin and end within a character. A special token gives its spelling.

        Raises:
            ValueError: If the ids are not integers of rank 1, or not all of them lie in [0, vocabulary_size).
        """
        return b"".join([self._tokens[token_id] for token_id in to_id_array(ids, self.vocabulary_size).tolist()])

    def get_config(self) -> dict[str, Any]:
        # A string for each merge, so that the file has one a line.
        return {
            "merges": [f"{left} {right}" for left, right in self._merges],
            "special_tokens": list(self._special_tokens),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Makes a tokenizer from what `get_config` gives."""
        return cls(**{**config, "merges": [tuple(map(int, merge.split())) for merge in config["merges"]]})

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self._special_tokens[:5])) + (", …" if len(self._special_tokens) > 5 else "")
        return f"<BytePairTokenizer vocabulary_size={self.vocabulary_size} special_tokens=[{shown}]>"

    @functools.cached_property
    def _coder(self) -> Any:
        letters = dict(enumerate(_byte_letters()))
        first = len(self._special_tokens)
        spelled = [token.decode("latin-1").translate(letters) for token in self._tokens[first:]]
        vocabulary = {token: place for place, token in enumerate(spelled)}
        merges = [(spelled[left - first], spelled[right - first]) for left, right in self._merges]
        return _make_coder(_import_library().models.BPE(vocab=vocabulary, merges=merges))


def _import_library() -> ModuleType:
    # Names are imported, too: a mere folder called tokenizers can be imported and has none of them.
    try:
        import tokenizers
        from tokenizers import models, pre_tokenizers, trainers  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "BytePairTokenizer trains and encodes with the library tokenizers, which cannot be imported. "
            'Install it with: pip install "keras_lt[tokenizers]"'
        ) from error
    return tokenizers


def _make_coder(model: Any) -> Any:
    library = _import_library()
    coder = library.Tokenizer(model)
    coder.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    return coder


def _byte_letters() -> list[str]:
    """The letters that the library writes for the 256 bytes.

    A byte that Latin-1 prints is that letter; the others are letters above Latin-1 in the order of the bytes.
    """
    alphabet = sorted(_import_library().pre_tokenizers.ByteLevel.alphabet())
    letters = {ord(letter): letter for letter in alphabet if ord(letter) < 256}
    others = [byte for byte in range(256) if byte not in letters]
    letters.update(zip(others, alphabet[len(letters) :], strict=True))
    return [letters[byte] for byte in range(256)]


def _read_merges(coder: Any, first: int) -> list[tuple[int, int]]:
    """The merges of the library's trained coder as pairs of ids, where that of byte 0 is `first`."""
    bytes_of = {letter: byte for byte, letter in enumerate(_byte_letters())}
    ids = {token: first + place for place, token in enumerate(_single_bytes())}
    merges = []
    for pair in json.loads(coder.to_str())["model"]["merges"]:
        left, right = (bytes(bytes_of[letter] for letter in token) for token in pair)
        merges.append((ids[left], ids[right]))
        ids.setdefault(left + right, first + len(ids))
    return merges


def _single_bytes() -> list[bytes]:
    return [bytes([byte]) for byte in range(256)]


def _pieces(text: str) -> Iterator[str]:
    """Cuts a text into pieces that are encoded as they are in the whole text."""
    start = 0
    while start < len(text):
        border = _BORDER.search(text, start + _PIECE_LENGTH)
        end = border.end() if border else len(text)
        yield text[start:end]
        start = end


def _training_pieces(texts: str | Iterable[str]) -> Iterator[str]:
    if not isinstance(texts, Iterable):
        raise TypeError(f"`texts` must be a string or an iterable of strings. Received: {type(texts).__name__}")
    for place, text in enumerate([texts] if isinstance(texts, str) else texts):
        to_utf8("texts" if isinstance(texts, str) else f"texts[{place}]", text)
        yield from _pieces(text)


def _check_special_tokens(special_tokens: Sequence[str]) -> tuple[str, ...]:
    if isinstance(special_tokens, str) or not isinstance(special_tokens, Iterable):
        raise TypeError(f"`special_tokens` must be a list of strings. Received: {special_tokens!r}")
    special_tokens = tuple(special_tokens)
    for token in special_tokens:
        check_text("special_tokens", token)
        to_utf8("special_tokens", token)
        if not token or special_tokens.count(token) > 1:
            raise ValueError(
                f"Each of `special_tokens` must be a string with characters, and occur once. Received: {token!r} "
                f"in {list(special_tokens)}"
            )
    return special_tokens


def _to_pair(merge: Any) -> tuple[int, int]:
    pair = tuple(merge) if isinstance(merge, Iterable) else ()
    if len(pair) != 2 or not all(isinstance(token_id, (int, np.integer)) for token_id in pair):
        raise ValueError(f"Each of `merges` must be a pair of ids. Received: {merge!r}")
    return int(pair[0]), int(pair[1])
