import keras
import numpy as np
import pytest

from keras_lt.tokenizers import ByteTokenizer, CharTokenizer

UNICODE = "naïve 😀 \U0001d11e e\u0301 \u2028\r\n\x00 \uffff \U0010ffff ß"


@pytest.mark.parametrize("text", ["hello", "", UNICODE, UNICODE * 50])
def test_ids_are_the_bytes_of_utf8(text):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert ids.tolist() == list(bytearray(text, "utf-8"))
    assert tokenizer.decode(ids) == text


def test_vocabulary_is_all_bytes():
    tokenizer = ByteTokenizer()
    assert tokenizer.vocabulary_size == 256
    ascii_text = "".join(map(chr, range(128)))
    assert tokenizer.decode(range(128)) == ascii_text


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([0xC3], "\ufffd"),
        ([0x61, 0xFF, 0x62], "a\ufffdb"),
        ([0x61, 0xE2, 0x82], "a\ufffd"),
        ([0xC3, 0xA9, 0xC3], "é\ufffd"),
    ],
)
def test_what_is_no_utf8_is_replaced(ids, text):
    assert ByteTokenizer().decode(ids) == text


def test_bytes_of_ids_are_the_ids():
    assert ByteTokenizer().decode_bytes(range(256)) == bytes(range(256))
    assert ByteTokenizer().decode_bytes([]) == b""
    assert ByteTokenizer().decode_bytes(keras.ops.convert_to_tensor([0xC3], "int32")) == b"\xc3"
    with pytest.raises(ValueError, match="vocabulary_size=256.*Received: 256"):
        ByteTokenizer().decode_bytes([256])


def test_lone_surrogates_have_no_bytes():
    with pytest.raises(ValueError, match=r"'\\udc80' at position 2.*surrogate") as error:
        ByteTokenizer().encode("ab\udc80")
    assert type(error.value) is ValueError


@pytest.mark.parametrize("value", [b"abc", 3, None])
def test_what_is_no_text_is_a_type_error(value):
    with pytest.raises(TypeError, match=type(value).__name__):
        ByteTokenizer().encode(value)


def test_decode_takes_tensors():
    assert ByteTokenizer().decode(keras.ops.convert_to_tensor([104, 105], "int32")) == "hi"


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 256], r"vocabulary_size=256.*Received: 256 at \[1\]"),
        ([-1], r"Received: -1 at \[0\]"),
        ([1.0], "integers.*float64"),
        ([[0]], r"rank 1.*\(1, 1\)"),
        (1, r"rank 1.*\(\)"),
    ],
)
def test_wrong_ids(ids, message):
    with pytest.raises(ValueError, match=message):
        ByteTokenizer().decode(ids)


def test_save_and_load(tmp_path):
    path = tmp_path / "tokenizer.json"
    ByteTokenizer().save(path)
    assert ByteTokenizer.load(path) == ByteTokenizer()
    CharTokenizer("abc").save(path)
    with pytest.raises(ValueError, match=r"must hold a ByteTokenizer\. Received: a CharTokenizer"):
        ByteTokenizer.load(path)


def test_config_equality_and_repr():
    tokenizer = ByteTokenizer()
    assert ByteTokenizer.from_config(tokenizer.get_config()) == tokenizer
    assert keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tokenizer)) == tokenizer
    assert hash(tokenizer) == hash(ByteTokenizer())
    assert tokenizer != CharTokenizer("abc")
    assert repr(tokenizer) == "<ByteTokenizer vocabulary_size=256>"
