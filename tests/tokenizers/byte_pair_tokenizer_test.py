import copy
import hashlib
import importlib.util
import itertools
import json
import pickle
import sys
import unicodedata

import keras
import numpy as np
import pytest

from keras_lt.tokenizers import BytePairTokenizer, ByteTokenizer, Tokenizer, byte_pair_tokenizer
from testing import fresh_process

TEXT = (
    """She sells sea shells by the sea shore; the shells she sells are sea shells for sure.
The café's naïve résumé: 2,024 cafés, 1,024 résumés — “déjà vu” 😀😀 in the café!
    if shells:\r\n        return [shell for shell in shells]\r\n
"""
    + "समुद्र तट पर सीपियाँ, समुद्र के सीप। 海辺で貝を売る、貝を売る。 " * 3
)

HARD = [
    "",
    " ",
    "  two  spaces  ",
    "\r\n\r\n \t\v\f\x1c\x85\xa0\u180e\u2028\u3000x",
    "\x00\x00\x01\x1b[0m\x7f\x80\x9f\ufeff\uffff",
    "e\u0301 n\u0303 \u200d\u200b👩‍👩‍👧‍👦 🇩🇪 𝄞 \U0010ffff",
    "שלום עולם \u202eمرحب\u202c",
    "<end> <pad><end>x",
    "it's we'll I'D 'tis don''t",
    "Ġ Ċ Ā",
]

needs_library = pytest.mark.skipif(
    getattr(importlib.util.find_spec("tokenizers"), "origin", None) is None,
    reason='the library tokenizers is not installed: pip install "keras_lt[tokenizers]"',
)


@pytest.fixture(scope="module")
def tokenizer():
    return BytePairTokenizer.train(TEXT, 256 + 2 + 200, special_tokens=["<pad>", "<end>"])


def random_texts(count):
    """Random Unicode: ASCII and white space often, then every plane, never a surrogate."""
    generator = np.random.default_rng(0)
    common = np.array([ord(c) for c in "aeshl sea  \n\r\t.,'0123éжの😀"])
    for _ in range(count):
        length = int(generator.integers(1, 80))
        anything = generator.integers(0, 0x110000, length)
        anything[(anything >= 0xD800) & (anything < 0xE000)] = 0
        chosen = np.where(generator.random(length) < 0.8, generator.choice(common, length), anything)
        yield "".join(map(chr, chosen))


def apply_merges(word, merges, first):
    """The definition: the earliest merge that has a pair here joins its pairs from the left, until none has one.

    Written for merges that all make a new token.
    """
    ids = [first + byte for byte in word.encode("utf-8")]
    while True:
        rank = min((merges.index(pair) for pair in itertools.pairwise(ids) if pair in merges), default=None)
        if rank is None:
            return ids
        joined, place = [], 0
        while place < len(ids):
            if tuple(ids[place : place + 2]) == merges[rank]:
                joined.append(first + 256 + rank)
                place += 2
            else:
                joined.append(ids[place])
                place += 1
        ids = joined


@needs_library
@pytest.mark.parametrize("text", HARD)
def test_hard_texts_come_back(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int32
    assert ids.ndim == 1
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode_bytes(ids) == text.encode("utf-8")


@needs_library
def test_random_texts_come_back(tokenizer):
    for text in random_texts(500):
        assert tokenizer.decode(tokenizer.encode(text)) == text


@needs_library
def test_every_character_comes_back(tokenizer):
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x110000, 97)]))
    assert tokenizer.decode(tokenizer.encode(text)) == text


@needs_library
def test_ids_follow_from_the_merges_by_definition(tokenizer):
    assert tokenizer.vocabulary_size == 258 + len(tokenizer.merges)
    words = {word for text in [TEXT, *random_texts(100)] for word in text.split()}
    assert len(words) > 200
    for word in words:
        if word.isalpha() and max(word) < "\u3100":  # letters in every version of Unicode: one word for the library
            assert tokenizer.encode(word).tolist() == apply_merges(word, tokenizer.merges, 2)
            assert tokenizer.encode(" " + word).tolist() == apply_merges(" " + word, tokenizer.merges, 2)
    assert tokenizer.encode("sea shells").tolist() == [*tokenizer.encode("sea"), *tokenizer.encode(" shells")]


@needs_library
def test_training_joins_the_most_frequent_pair_again_and_again():
    # Words and their numbers: "ab" 5, "abc" 4, "bc" 2, each on its own. a-b 9; then ab-c 4; then b-c 2.
    tokenizer = BytePairTokenizer.train(["ab"] * 5 + ["abc"] * 4 + ["bc"] * 2, 1000)
    assert tokenizer.merges == ((97, 98), (256, 99), (98, 99))
    assert tokenizer.encode("abc").tolist() == [257]
    assert tokenizer.encode("bcabab").tolist() == [258, 256, 256]


@needs_library
def test_merges_that_make_the_same_bytes_share_an_id():
    tokenizer = BytePairTokenizer([(97, 98), (256, 99), (98, 99), (97, 258)])
    assert tokenizer.vocabulary_size == 259
    assert [tokenizer.decode([i]) for i in range(256, 259)] == ["ab", "abc", "bc"]
    assert tokenizer.encode("abc bc").tolist() == [257, 32, 258]
    # The third merge leaves a-bc to the fourth, which makes what the second could not.
    again = BytePairTokenizer([(98, 99), (97, 98), (257, 99), (97, 256)])
    assert again.encode("abc").tolist() == [258]


@needs_library
def test_pieces_of_a_long_text_have_its_ids(monkeypatch, tokenizer):
    texts = [TEXT, *HARD, *random_texts(200)]
    spaces = [one for one in map(chr, range(0xD800)) if one.isspace() or unicodedata.category(one) in ("Cc", "Cf")]
    texts += [f"a{one} b{one}\n{one} {one}" for one in spaces]
    whole = [tokenizer.encode(text).tolist() for text in texts]
    trained = BytePairTokenizer.train(texts, 300)
    monkeypatch.setattr(byte_pair_tokenizer, "_PIECE_LENGTH", 0)
    assert [tokenizer.encode(text).tolist() for text in texts] == whole
    assert BytePairTokenizer.train(texts, 300) == trained
    assert list(byte_pair_tokenizer._pieces("a b  c\n\n")) == ["a", " b", "  c", "\n\n"]


@needs_library
def test_special_tokens_are_never_found_in_text(tokenizer):
    assert tokenizer.special_tokens == ("<pad>", "<end>")
    assert [tokenizer.special_token_id(token) for token in ("<pad>", "<end>")] == [0, 1]
    assert tokenizer.encode("<pad> a<end>" + "".join(map(chr, range(300)))).min() >= 2
    trained = BytePairTokenizer.train("<end>" * 100, 400, special_tokens=["<end>"])
    assert trained.special_token_id("<end>") not in trained.encode("<end><end>")
    ids = [*tokenizer.encode("sea"), 1, *tokenizer.encode("é")]
    assert tokenizer.decode(ids) == "sea<end>é"
    for token in ("<other>", "", 1):
        with pytest.raises(ValueError, match=r"one of \['<pad>', '<end>'\]"):
            tokenizer.special_token_id(token)


@needs_library
def test_vocabulary_size():
    for text in ("", [], ["", ""], "abc", iter(["abc"])):
        tokenizer = BytePairTokenizer.train(text, 1000, special_tokens=["<end>"])
        assert tokenizer.vocabulary_size == 257
        assert tokenizer.encode("é").tolist() == [1 + 0xC3, 1 + 0xA9]
    for size in (256, 257, 300, np.int64(310)):
        assert BytePairTokenizer.train(TEXT, size).vocabulary_size == size
    assert BytePairTokenizer.train(TEXT, 300, special_tokens=["a", "b"]).vocabulary_size == 300
    with pytest.raises(ValueError, match=r"at least 258: 256 bytes and 2 special.*vocabulary_size=257"):
        BytePairTokenizer.train(TEXT, 257, special_tokens=["a", "b"])
    for size in (300.0, "300", None, 0):
        with pytest.raises(ValueError, match="vocabulary_size"):
            BytePairTokenizer.train(TEXT, size)


@needs_library
def test_texts_may_be_any_iterable():
    lines = TEXT.splitlines(keepends=True)
    expected = BytePairTokenizer.train(lines, 300)
    assert BytePairTokenizer.train((line for line in lines), 300) == expected
    for texts, name in ((b"abc", "int"), (3, "int"), (None, "NoneType"), (["a", b"b"], r"texts\[1\].*bytes")):
        with pytest.raises(TypeError, match=name):
            BytePairTokenizer.train(texts, 300)
    with pytest.raises(ValueError, match=r"`texts\[1\]` holds '\\udc80' at position 1"):
        BytePairTokenizer.train(["a", "a\udc80"], 300)


@needs_library
def test_lone_surrogates_and_what_is_no_text(tokenizer):
    with pytest.raises(ValueError, match=r"'\\udc80' at position 2.*surrogate"):
        tokenizer.encode("ab\udc80")
    for value in (b"abc", 3, None, ["a"]):
        with pytest.raises(TypeError, match=type(value).__name__):
            tokenizer.encode(value)


@needs_library
def test_another_process_finds_and_loads_the_same(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    (tmp_path / "text.txt").write_bytes(TEXT.encode("utf-8"))
    expected = [hashlib.sha256(tokenizer.encode(TEXT).tobytes()).hexdigest(), str(tokenizer.merges)]
    code = """
        import hashlib, sys
        import keras_lt
        text = open(sys.argv[2], "rb").read().decode("utf-8")
        loaded = keras_lt.tokenizers.Tokenizer.load(sys.argv[1])
        trained = keras_lt.tokenizers.BytePairTokenizer.train(text, 458, special_tokens=["<pad>", "<end>"])
        print(hashlib.sha256(loaded.encode(text).tobytes()).hexdigest(), trained.merges, sep="\\n")
    """
    said = fresh_process(code, tmp_path / "tokenizer.json", tmp_path / "text.txt", PYTHONHASHSEED="123")
    assert said.splitlines() == expected


@needs_library
def test_copies_encode_alike(tokenizer):
    tokenizer.encode("used before")
    for other in (pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)):
        assert other == tokenizer
        assert other.encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


def test_without_the_library(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    BytePairTokenizer([(97, 98)], special_tokens=["<end>"]).save(tmp_path / "tokenizer.json")
    tokenizer = Tokenizer.load(tmp_path / "tokenizer.json")
    assert tokenizer.vocabulary_size == 258
    for use in (lambda: tokenizer.encode("ab"), lambda: BytePairTokenizer.train("ab", 300)):
        with pytest.raises(ImportError, match=r'pip install "keras_lt\[tokenizers\]"'):
            use()


def test_decoding_needs_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    # 0 is <end>, byte b is 1 + b; "😀" is f0 9f 98 80, of which the merges make f09f, then f09f98.
    tokenizer = BytePairTokenizer([(1 + 0xF0, 1 + 0x9F), (257, 1 + 0x98)], special_tokens=["<end>"])
    assert tokenizer.decode_bytes([258, 129]) == "😀".encode()
    assert tokenizer.decode_bytes([257]) == b"\xf0\x9f"
    assert tokenizer.decode([98, 258, 98, 0]) == "a\ufffda<end>"
    assert tokenizer.decode(np.array([258, 129, 257], "int64")) == "😀\ufffd"
    assert tokenizer.decode(keras.ops.convert_to_tensor([105, 106], "int32")) == "hi"
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode_bytes([]) == b""


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 257], r"vocabulary_size=257.*Received: 257 at \[1\]"),
        ([-1], r"Received: -1 at \[0\]"),
        ([1.0], "integers.*float64"),
        ([[0]], r"rank 1.*\(1, 1\)"),
        (1, r"rank 1.*\(\)"),
    ],
)
def test_wrong_ids(ids, message):
    tokenizer = BytePairTokenizer([(97, 98)])
    for decode in (tokenizer.decode, tokenizer.decode_bytes):
        with pytest.raises(ValueError, match=message):
            decode(ids)


@pytest.mark.parametrize(
    "merges",
    [[(97,)], [(97, 98, 99)], [3], ["ab"], [(1.0, 2.0)], [(97, 256)], [(-1, 97)], [(97, 98), (97, 98)], [(97, 98), 7]],
)
def test_wrong_merges(merges):
    with pytest.raises(ValueError, match="Each of `merges` must be a.* pair of ids.*Received: "):
        BytePairTokenizer(merges)


def test_merges_of_special_tokens_are_wrong():
    with pytest.raises(ValueError, match=r"from 1 to 256 at merge 0\. Received: \(0, 98\)"):
        BytePairTokenizer([(0, 98)], special_tokens=["<end>"])


@pytest.mark.parametrize(
    ("special_tokens", "error", "message"),
    [
        ("<end>", TypeError, "list of strings. Received: '<end>'"),
        (3, TypeError, "list of strings. Received: 3"),
        ([3], TypeError, "special_tokens.*int"),
        ([""], ValueError, "Received: ''"),
        (["<end>", "a", "<end>"], ValueError, "once. Received: '<end>'"),
        (["\udc80"], ValueError, "surrogate"),
    ],
)
def test_wrong_special_tokens(special_tokens, error, message):
    for use in (
        lambda: BytePairTokenizer([], special_tokens),
        lambda: BytePairTokenizer.train("abc", 300, special_tokens),
    ):
        with pytest.raises(error, match=message):
            use()


def test_save_and_load(tmp_path):
    tokenizer = BytePairTokenizer([(99, 100), (258, 101)], special_tokens=["<é>", "😀"])
    path = tmp_path / "tokenizer.json"
    tokenizer.save(path)
    assert json.loads(path.read_text(encoding="utf-8"))["config"] == {
        "merges": ["99 100", "258 101"],
        "special_tokens": ["<é>", "😀"],
    }
    for loaded in (BytePairTokenizer.load(path), Tokenizer.load(path)):
        assert loaded == tokenizer
        assert loaded.merges == ((99, 100), (258, 101))
        assert loaded.special_tokens == ("<é>", "😀")
        assert loaded.decode([259]) == "abc"
    with pytest.raises(ValueError, match=r"must hold a ByteTokenizer\. Received: a BytePairTokenizer"):
        ByteTokenizer.load(path)


def test_config_equality_and_repr():
    tokenizer = BytePairTokenizer([(97, 98)])
    assert BytePairTokenizer.from_config(tokenizer.get_config()) == tokenizer
    assert keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(tokenizer)) == tokenizer
    assert hash(tokenizer) == hash(BytePairTokenizer(np.array([[97, 98]])))
    assert tokenizer == BytePairTokenizer(iter([[97, 98]]), [])
    assert tokenizer != BytePairTokenizer([(98, 97)])
    assert BytePairTokenizer([], ["a"]) != BytePairTokenizer([], ["b"])
    assert repr(tokenizer) == "<BytePairTokenizer vocabulary_size=257 special_tokens=[]>"
    assert repr(BytePairTokenizer([], list("abcdefg"))).endswith("special_tokens=['a', 'b', 'c', 'd', 'e', …]>")
