import codecs
import itertools

import numpy as np
import pytest

from keras_lt.serving.graph_tokenizers import graph_tokenizer
from keras_lt.text_generator import _Continuation
from keras_lt.tokenizers import BytePairTokenizer, ByteTokenizer, CharTokenizer

tf = pytest.importorskip("tensorflow")

# Not in the order of the code points; outside the basic plane, a combining mark, NUL, a byte order mark, U+FFFD.
VOCABULARY = "ba é\ufeff😀\u0301\x00\n\U0010ffff€e\ufffd\ud7ff\ue000\x7f\x80"
CHAR = CharTokenizer(VOCABULARY)
TEXTS = ["ba", "", "é e\u0301 \u0301", "\ufeffa\ufeff", "\x00a\x00", "\U0010ffff😀€\n", "\ufffd", VOCABULARY, "a" * 999]

# Where the rules of UTF-8 change: beginnings and ends of the ranges of first and following bytes.
BORDERS = bytes.fromhex("00417f80 8f909fa0 bfc0c1c2 dfe0e1ec edeeeff0 f1f3f4f5 ff")


def encoder(tokenizer):
    graph = graph_tokenizer(tokenizer)
    function = tf.function(graph.encode, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False)

    def encode(texts):
        ids = function(tf.constant(texts, tf.string))
        return [row.tolist() for row in np.split(ids.flat_values.numpy(), ids.row_splits.numpy()[1:-1])][: len(texts)]

    return encode


def decoder(tokenizer):
    graph = graph_tokenizer(tokenizer)
    signature = [tf.RaggedTensorSpec([None, None], tf.int32)]
    function = tf.function(graph.decode, input_signature=signature, autograph=False)

    def decode(rows):
        flat = np.concatenate([np.asarray(row, "int32") for row in [[], *rows]]).astype("int32")
        return function(tf.RaggedTensor.from_row_lengths(flat, [len(row) for row in rows])).numpy().tolist()

    return decode


def complete(data):
    """What Python's own decoder makes of bytes after which more may come."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data)


def valid(data):
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def check_decode(decode, strings):
    found = decode([list(data) for data in strings])
    wrong = [
        (data, text.decode("utf-8"), complete(data))
        for data, text in zip(strings, found, strict=True)
        if text != complete(data).encode("utf-8")
    ]
    assert not wrong, f"{len(wrong)} of {len(strings)}: {wrong[:5]}"


@pytest.mark.parametrize("tokenizer", [CHAR, ByteTokenizer(), CharTokenizer("é")])
def test_encode_is_that_of_python(tokenizer):
    texts = ["", "é", "éé"] if tokenizer.vocabulary_size == 1 else TEXTS
    encode = encoder(tokenizer)
    assert encode(texts) == [tokenizer.encode(text).tolist() for text in texts]
    assert encode([]) == []
    assert encode([""]) == [[]]


@pytest.mark.parametrize("tokenizer", [CHAR, ByteTokenizer()])
def test_decode_gives_back_what_was_encoded(tokenizer):
    rows = [tokenizer.encode(text).tolist() for text in TEXTS]
    decode = decoder(tokenizer)
    assert decode(rows) == [text.encode("utf-8") for text in TEXTS]
    assert decode([]) == []
    assert decode([[]]) == [b""]
    assert decode([[], rows[0], []]) == [b"", TEXTS[0].encode("utf-8"), b""]


def test_characters_of_all_planes():
    # Noncharacters such as U+FFFE are characters here, as they are in Python; surrogates are none.
    points = {*range(0, 0x110000, 13), *range(0x900), *range(0xFDC0, 0x10010)}
    points |= {plane * 0x10000 + last for plane in range(17) for last in (0, 1, 0xFFFD, 0xFFFE, 0xFFFF)}
    characters = [chr(point) for point in sorted(points) if not 0xD800 <= point < 0xE000]
    text = "".join(characters)
    tokenizer = CharTokenizer(text[::-1])
    ids = encoder(tokenizer)([text])[0]
    np.testing.assert_array_equal(ids, np.arange(len(characters))[::-1])
    assert decoder(tokenizer)([ids]) == [text.encode("utf-8")]
    assert decoder(ByteTokenizer())([list(text.encode("utf-8"))]) == [text.encode("utf-8")]


@pytest.mark.parametrize("unknown", ["c", "É", "\u0300", "😁", "\x01", "\ufefe", "\U0010fffe", "\u00b4"])
def test_unknown_characters(unknown):
    encode = encoder(CHAR)
    for texts, number in [([unknown], 0), (["ba", "", "a" * 50 + unknown, unknown], 2)]:
        with pytest.raises(tf.errors.InvalidArgumentError, match=f"vocabulary of {len(VOCABULARY)} lacks") as error:
            encode(texts)
        assert f"text number] [{number}]" in error.value.message
        assert texts[number].replace("\x01", "\\001") in error.value.message


@pytest.mark.parametrize("tokenizer", [CHAR, ByteTokenizer()])
@pytest.mark.parametrize(
    "broken",
    [b"\x80", b"a\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"],
)
def test_no_utf8(tokenizer, broken):
    encode = encoder(tokenizer)
    for texts, number in [([broken], 0), ([b"a", b"", b"b" + broken + b"a", b"e"], 2)]:
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be UTF-8. Received: text number") as error:
            encode(texts)
        assert f"text number] [{number}]" in error.value.message


def test_what_is_utf8_is_what_python_says():
    encode = encoder(ByteTokenizer())
    strings = [bytes(data) for size in (1, 2, 3) for data in itertools.product(BORDERS, repeat=size)]
    strings = [data for data in strings if not valid(data)]
    assert len(strings) > 10_000
    for data in strings[:: len(strings) // 200]:
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be UTF-8"):
            encode([data])


def test_bytes_decode_as_python_does():
    decode = decoder(ByteTokenizer())
    check_decode(decode, [bytes(data) for size in (0, 1, 2, 3) for data in itertools.product(BORDERS, repeat=size)])
    generator = np.random.default_rng(0)
    borders = np.frombuffer(BORDERS, "uint8")
    check_decode(decode, [generator.choice(borders, length).tobytes() for length in generator.integers(4, 9, 20_000)])
    check_decode(decode, [generator.bytes(length) for length in generator.integers(1, 40, 5_000)])


def test_every_pair_of_last_bytes():
    decode = decoder(ByteTokenizer())
    pairs = [bytes(pair) for pair in itertools.product(range(256), repeat=2)]
    check_decode(decode, pairs)
    check_decode(decode, [b"\xf0" + pair for pair in pairs])
    check_decode(decode, [b"\xf1\x80" + pair for pair in pairs])


def test_every_incomplete_character_is_left_out():
    decode = decoder(ByteTokenizer())
    generator = np.random.default_rng(1)
    points = [*generator.integers(0x80, 0xD800, 500), *generator.integers(0xE000, 0x110000, 1500)]
    points += [0x80, 0x7FF, 0x800, 0xFFF, 0xCFFF, 0xD000, 0xD7FF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, 0x10FFFF]
    characters = [chr(point).encode("utf-8") for point in points]
    prefixes = [data[:size] for data in characters for size in range(1, len(data))]
    assert {data for data in decode([list(data) for data in prefixes])} == {b""}
    strings = [b"a\xc3\xa9" + data for data in prefixes]
    assert {data for data in decode([list(data) for data in strings])} == {b"a\xc3\xa9"}
    # In one batch with longer rows, and after bytes that are no UTF-8 themselves.
    check_decode(decode, [data + prefix for prefix in prefixes for data in (b"", b"\xf0\x9f", b"\x80", b"\xe2")])


def test_the_rule_is_that_of_text_generator():
    generator = np.random.default_rng(2)
    strings = [generator.choice(np.frombuffer(BORDERS, "uint8"), 7).tobytes() for _ in range(500)]
    expected = []
    for data in strings:
        continuation = _Continuation(ByteTokenizer(), [])
        for end in range(len(data) + 1):
            continuation.read(list(data[:end]))
        expected.append(continuation.all().encode("utf-8"))
    assert decoder(ByteTokenizer())([list(data) for data in strings]) == expected


def test_byte_pairs_have_no_graph_form():
    assert graph_tokenizer(BytePairTokenizer([(97, 98)])) is None
