import json
import os

import keras
import numpy as np
import pytest

from keras_lt.tokenizers import ByteTokenizer, CharTokenizer
from testing import SHARED, needs_shared

# Two- to four-byte characters, a combining accent, control and separator characters, the first and the last of all.
UNICODE = 'naïve 😀 \U0001d11e e\u0301 \u2028\r\n\t"\\ \ufeff \x00 \uffff \U0010ffff ß😀'


@pytest.mark.parametrize("text", ["hello", "", "a", UNICODE, UNICODE * 50])
def test_ids_are_places_among_the_sorted_distinct_characters(text):
    tokenizer = CharTokenizer.from_text(text)
    vocabulary = sorted(set(text))

    ids = tokenizer.encode(text)

    assert list(tokenizer.vocabulary) == vocabulary
    assert tokenizer.vocabulary_size == len(vocabulary)
    assert ids.dtype == np.int32
    assert ids.shape == (len(text),)
    assert ids.tolist() == [vocabulary.index(character) for character in text]
    assert tokenizer.decode(ids) == text


@needs_shared
def test_shakespeare():
    text = (SHARED / "data" / "tinyshakespeare.txt").read_text(encoding="utf-8")
    tokenizer = CharTokenizer.from_text(text)
    ids = tokenizer.encode(text)
    assert tokenizer.vocabulary_size == 65
    assert ids[:5000].tolist() == [tokenizer.vocabulary.index(character) for character in text[:5000]]
    assert tokenizer.decode(ids) == text


def test_given_order_is_kept():
    tokenizer = CharTokenizer("zaé")
    assert tokenizer.encode("aéz").tolist() == [1, 2, 0]
    assert tokenizer.decode([0, 0, 2]) == "zzé"


def test_encoded_ids_can_be_changed():
    tokenizer = CharTokenizer("ab")
    tokenizer.encode("aabb")[:] = 7
    assert tokenizer.encode("aabb").tolist() == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("abcé", ["'é' (U+00E9)", "position 3"]),
        ("ab~a~", ["'~'", "position 2"]),
        ("aaaa\n", [r"'\n' (U+000A)", "position 4"]),
        ("\x00", [r"'\x00'", "position 0"]),
        ("c😀", ["'😀' (U+1F600)", "position 1"]),
        ("a\ud83d", [r"'\ud83d' (U+D83D)", "position 1"]),
        ("012345678", ["'0'", "'4'", "and 4 others", "position 0"]),
    ],
)
def test_unknown_characters_are_named(text, said):
    with pytest.raises(ValueError, match="vocabulary of 3 characters") as error:
        CharTokenizer("abc").encode(text)
    for words in [*said, "from_text", "ByteTokenizer"]:
        assert words in str(error.value)


def test_vocabulary_without_characters_knows_the_empty_text_only():
    tokenizer = CharTokenizer.from_text("")
    assert tokenizer.decode([]) == ""
    with pytest.raises(ValueError, match=r"'\\x00'"):
        tokenizer.encode("\x00")
    with pytest.raises(ValueError, match="Received: 0"):
        tokenizer.decode([0])


def test_wrong_vocabularies():
    with pytest.raises(ValueError, match="'a'"):
        CharTokenizer("aba")
    with pytest.raises(ValueError, match=r"'\\udc80' at position 2"):
        CharTokenizer.from_text("ab\udc80")
    with pytest.raises(ValueError, match="lone surrogate"):
        CharTokenizer("\ud83d\ude00")


@pytest.mark.parametrize("value", [b"abc", 3, None, ["a", "b"]])
def test_what_is_no_text_is_a_type_error(value):
    for function in (CharTokenizer, CharTokenizer.from_text, CharTokenizer("abc").encode):
        with pytest.raises(TypeError, match=type(value).__name__):
            function(value)


@pytest.mark.parametrize(
    "ids",
    [
        [2, 0, 1],
        (2, 0, 1),
        np.array([2, 0, 1], "uint8"),
        np.array([2, 0, 1], "int64"),
        np.array([1, 9, 0, 9, 2, 9], "int32")[-2::-2],
    ],
)
def test_decode_takes_any_integers(ids):
    assert CharTokenizer("abc").decode(ids) == "cab"


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_decode_takes_tensors(dtype):
    assert CharTokenizer("abc").decode(keras.ops.convert_to_tensor([2, 0, 1], dtype)) == "cab"


def test_bytes_of_ids_are_whole_characters():
    tokenizer = CharTokenizer.from_text(UNICODE)
    ids = tokenizer.encode(UNICODE)
    assert tokenizer.decode_bytes(ids) == UNICODE.encode("utf-8")
    assert [tokenizer.decode_bytes(ids[i : i + 1]) for i in range(6)] == [c.encode("utf-8") for c in UNICODE[:6]]
    assert tokenizer.decode_bytes([]) == b""
    with pytest.raises(ValueError, match="vocabulary_size=3.*Received: 3"):
        CharTokenizer("abc").decode_bytes([3])


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 3], r"vocabulary_size=3.*Received: 3 at \[1\]"),
        ([0, 1, -1], r"Received: -1 at \[2\]"),
        ([2**40], "Received: 1099511627776"),
        ([1.0], "integers.*float64"),
        (np.array([1.0], "float32"), "integers.*float32"),
        ([True], "integers.*bool"),
        (["a"], "integers"),
        ([[0]], r"rank 1.*\(1, 1\)"),
        (1, r"rank 1.*\(\)"),
        (np.zeros((0, 3), "int32"), r"rank 1.*\(0, 3\)"),
        ([[0], [1, 2]], "sequence"),
    ],
)
def test_wrong_ids(ids, message):
    with pytest.raises(ValueError, match=message):
        CharTokenizer("abc").decode(ids)


def test_save_and_load(tmp_path):
    tokenizer = CharTokenizer.from_text(UNICODE)
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    again = CharTokenizer.load(str(path))
    assert again == tokenizer
    assert again.encode(UNICODE).tolist() == tokenizer.encode(UNICODE).tolist()
    assert os.listdir(tmp_path) == ["tokenizer.json"]
    assert json.loads(path.read_text(encoding="utf-8"))["config"] == {"vocabulary": "".join(sorted(set(UNICODE)))}
    assert "😀" in path.read_text(encoding="utf-8")


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "tokenizer.json"
    CharTokenizer("abc").save(path)

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        CharTokenizer("xyz").save(path)
    assert CharTokenizer.load(path) == CharTokenizer("abc")
    assert os.listdir(tmp_path) == ["tokenizer.json"]


@pytest.mark.parametrize("content", ["", "abc", "[1, 2]", "null", '{"vocabulary": "abc"}'])
def test_load_of_something_else(tmp_path, content):
    path = tmp_path / "other.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"other\.json must hold a CharTokenizer"):
        CharTokenizer.load(path)


def test_load_of_another_tokenizer_or_of_nothing(tmp_path):
    ByteTokenizer().save(tmp_path / "bytes.json")
    with pytest.raises(ValueError, match=r"must hold a CharTokenizer\. Received: a ByteTokenizer"):
        CharTokenizer.load(tmp_path / "bytes.json")
    with pytest.raises(FileNotFoundError):
        CharTokenizer.load(tmp_path / "nothing.json")


def test_config_and_keras_serialization():
    tokenizer = CharTokenizer("zaé")
    assert CharTokenizer.from_config(tokenizer.get_config()) == tokenizer
    assert keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tokenizer)) == tokenizer


def test_equality_and_repr():
    assert CharTokenizer("abc") == CharTokenizer.from_text("cba")
    assert hash(CharTokenizer("abc")) == hash(CharTokenizer.from_text("cba"))
    assert CharTokenizer("abc") != CharTokenizer("acb")
    assert CharTokenizer("abc") != "abc"
    assert repr(CharTokenizer("ab\n")) == r"<CharTokenizer vocabulary_size=3 vocabulary='ab\n'>"
    assert len(repr(CharTokenizer("".join(map(chr, range(0x4E00, 0x6E00)))))) < 200
