import gc
import importlib.util
import itertools
import json
import os
import pathlib
import shutil
import weakref

import keras
import numpy as np
import pytest
from keras import ops

import keras_lt
from keras_lt import TextGenerator, text_generator
from keras_lt.generation import BeamSearch, Sampler, generative_mixin
from keras_lt.generation.generative_mixin import GenerativeMixin
from keras_lt.models import LittleTransformer, RecurrentSeq2Seq
from keras_lt.text_generator import _Continuation
from keras_lt.tokenizers import BytePairTokenizer, ByteTokenizer, CharTokenizer
from testing import assert_close, fresh_process

CHAR = CharTokenizer("abcdefghijklmnopqrstuvwxyz .é€😀")
BYTE = ByteTokenizer()
# The token of byte b has id b + 1. One token begins within a character: é is C3 A9, and A9 goes with the letter after.
MERGES = [(98, 99), (257, 100), (0xA9 + 1, 98), (33, 98), (0x9F + 1, 0x98 + 1)]
PAIRS = BytePairTokenizer(MERGES, ["<end>"])
PAIR_BYTES = [b"<end>", *(bytes([b]) for b in range(256)), b"ab", b"abc", b"\xa9a", b" a", b"\x9f\x98"]
END = 0

needs_library = pytest.mark.skipif(
    getattr(importlib.util.find_spec("tokenizers"), "origin", None) is None,
    reason='the library tokenizers is not installed: pip install "keras_lt[tokenizers]"',
)
NAMES = ["char", "byte", pytest.param("pairs", marks=needs_library)]
NEW = 32  # with a prompt of up to 8 tokens a sequence has the same bucket
SHARPNESS = 9.0


class Speller(GenerativeMixin, keras.Model):
    """Says what its table holds: row by the first token of the prompt, column by the place in the sequence."""

    def __init__(self, vocabulary_size, width=64):
        super().__init__()
        self.vocabulary_size, self.max_sequence_length, self.width = vocabulary_size, None, width
        shape = (vocabulary_size, width)
        self.table = self.add_weight(shape=shape, dtype="int32", trainable=False, initializer="zeros", name="table")
        self.built = True

    def build_cache(self, batch_size, max_length):
        return ops.zeros((batch_size,), "int32")

    def call_with_cache(self, token_ids, cache, start_index, lengths=None):
        starts = ops.reshape(ops.cast(start_index, "int32"), (-1, 1))
        places = ops.broadcast_to(starts + ops.arange(token_ids.shape[1], dtype="int32") + 1, token_ids.shape)
        row = ops.where(places[:, 0] == 1, token_ids[:, 0], cache)
        cells = row[:, None] * self.width + places % self.width
        next_ids = ops.take(ops.reshape(self.table, (-1,)), cells)
        cache = row if lengths is None else ops.where(lengths > 0, row, cache)
        return SHARPNESS * ops.one_hot(next_ids, self.vocabulary_size), cache


@pytest.fixture(scope="module")
def spellers():
    tokenizers = {"char": CHAR, "byte": BYTE, "pairs": PAIRS}
    return {name: TextGenerator(Speller(one.vocabulary_size), one) for name, one in tokenizers.items()}


@keras.saving.register_keras_serializable(package="text_generator_test")
class Chain(GenerativeMixin, keras.Model):
    """A Markov chain: a table of the logits of the next token, a row for each token."""

    def __init__(self, vocabulary_size, **kwargs):
        super().__init__(**kwargs)
        self.vocabulary_size, self.max_sequence_length = vocabulary_size, None
        self.table = self.add_weight(shape=(vocabulary_size, vocabulary_size), initializer="zeros", name="table")
        self.built = True

    def call(self, token_ids):
        return ops.take(self.table, token_ids, axis=0)

    def compute_mask(self, inputs, previous_mask=None):
        return None

    def build_cache(self, batch_size, max_length):
        return ops.zeros((batch_size,))

    def call_with_cache(self, token_ids, cache, start_index, lengths=None):
        return self(token_ids), cache

    def get_config(self):
        return {**super().get_config(), "vocabulary_size": self.vocabulary_size}


def chain(tokenizer, seed=0):
    size = tokenizer.vocabulary_size
    generator = TextGenerator(Chain(size), tokenizer)
    generator.model.table.assign(np.random.default_rng(seed).normal(0, 2, (size, size)))
    return generator


@pytest.fixture(scope="module")
def markov():
    return chain(CHAR)


def say(generator, sayings):
    """Make the model continue each prompt with a text (or ids), again and again. First characters must differ."""
    table = np.zeros(generator.model.table.shape, "int32")
    assert len({prompt[0] for prompt in sayings}) == len(sayings)
    for prompt, saying in sayings.items():
        ids = generator.tokenizer.encode(prompt)
        said = generator.tokenizer.encode(saying) if isinstance(saying, str) else saying
        table[ids[0], len(ids) :] = np.resize(said, table.shape[1] - len(ids))
    generator.model.table.assign(table)


def to_bytes(name, ids):
    if name == "char":
        return "".join(CHAR.vocabulary[i] for i in ids).encode()
    return bytes(ids) if name == "byte" else b"".join(PAIR_BYTES[i] for i in ids)


def whole_characters(data):
    """The text of bytes but for a character that is not complete at their end."""
    for size in (1, 2, 3):
        ends = [data[-size:] + byte * more for byte in (b"\x80", b"\xbf") for more in (1, 2, 3)]
        if len(data) >= size and any(is_one_character(end) for end in ends):
            return data[:-size].decode("utf-8", "replace")
    return data.decode("utf-8", "replace")


def is_one_character(data):
    try:
        return len(data.decode("utf-8")) == 1
    except UnicodeDecodeError:
        return False


def cut(text, stops):
    """What stands before a stop string, of several the one that is complete first, and whether there is one."""
    for end in range(len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


def first_tokens(name, saying, count=NEW):
    tokenizer = {"char": CHAR, "byte": BYTE, "pairs": PAIRS}[name]
    ids = tokenizer.encode(saying).tolist() if isinstance(saying, str) else list(saying)
    return list(itertools.islice(itertools.cycle(ids), count))


# generate


def test_byte_pairs_are_what_the_tests_think():
    assert PAIRS.vocabulary_size == len(PAIR_BYTES)
    assert [PAIRS.decode_bytes([token_id]) for token_id in range(len(PAIR_BYTES))] == PAIR_BYTES
    assert PAIRS.special_token_id("<end>") == END


@pytest.mark.parametrize("name", NAMES)
def test_generate_says_what_the_model_says(spellers, name):
    generator, saying = spellers[name], "abc éa. abcéa €😀 a"
    say(generator, {"no. ": saying})
    expected = whole_characters(to_bytes(name, first_tokens(name, saying)))
    assert len(expected) > 15
    text = generator.generate("no. ", NEW)
    assert text == "no. " + expected
    ids = generator.model.generate([generator.tokenizer.encode("no. ")], NEW)[0]
    assert generator.tokenizer.decode(ids).rstrip("\ufffd") == text


def test_a_string_for_a_string_and_a_list_for_a_list(spellers):
    generator = spellers["char"]
    sayings = {"one": "yes ", "two ": "no. ", "é€😀 ": "😀a"}
    say(generator, sayings)
    expected = {prompt: prompt + (saying * NEW)[:NEW] for prompt, saying in sayings.items()}
    assert generator.generate("one", NEW) == expected["one"]
    assert generator.generate(["one"], NEW) == [expected["one"]]
    assert generator.generate(list(sayings), NEW) == list(expected.values())
    assert generator.generate(tuple(sayings), NEW) == list(expected.values())
    assert generator.generate("one", NEW, num_samples=2) == [expected["one"]] * 2
    assert generator.generate(["one"], NEW, num_samples=2) == [expected["one"]] * 2


def test_nothing_to_generate(spellers):
    generator = spellers["byte"]
    assert generator.generate([], 5) == []
    assert generator.generate("one", 0) == "one"
    assert generator.generate(["one"], 0, stop="n") == ["one"]
    assert list(generator.stream("one", 0)) == []


@pytest.mark.parametrize("prompt", ["a\xadb", "e\u0301", "\ufffd\x00\r\n", "\U0010ffff"])
def test_the_prompt_is_kept_exactly(spellers, prompt):
    generator = spellers["byte"]
    say(generator, {prompt: "x"})
    assert generator.generate(prompt, 5) == prompt + "xxxxx"


def test_settings_are_those_of_a_sampler(markov):
    settings = {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "repetition_penalty": 1.2}
    ids = markov.model.generate([CHAR.encode("one")], NEW, Sampler(**settings), seed=7)[0]
    expected = "".join(CHAR.vocabulary[i] for i in ids)
    assert len(expected) == 3 + NEW
    assert markov.generate("one", NEW, seed=7, **settings) == expected
    assert markov.generate("one", NEW, Sampler(**settings), seed=7) == expected
    assert markov.generate("one", NEW, seed=8, **settings) != expected
    assert "".join(markov.stream("one", NEW, seed=7, **settings)) == expected[3:]
    assert "".join(markov.stream("one", NEW, Sampler(**settings), seed=7)) == expected[3:]
    stop = [expected[20:22], expected[25:27]]
    stopped = cut(expected[3:], stop)[0]
    assert markov.generate("one", NEW, seed=7, stop=stop, **settings) == "one" + stopped != expected
    assert "".join(markov.stream("one", NEW, seed=7, stop=stop, **settings)) == stopped
    assert markov.generate("one", NEW, sampler="greedy") == markov.generate("one", NEW)


def test_seeds(markov):
    alone = [markov.generate(text, NEW, temperature=1.0, seed=seed) for text, seed in [("one", 4), ("two ", 5)]]
    samples = markov.generate(["one", "two "], NEW, temperature=1.0, seed=[4, 5], num_samples=2)
    assert samples[::2] == alone
    assert len(set(samples)) == 4
    assert [len(sample) for sample in samples] == [3 + NEW, 3 + NEW, 4 + NEW, 4 + NEW]
    assert markov.generate(["two ", "one"], NEW, temperature=1.0, seed=[5, 4], num_samples=2)[::2] == alone[::-1]
    by_default = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        by_default.append(markov.generate("one", NEW, temperature=1.0))
    assert by_default[0] == by_default[1] != by_default[2]


def test_beam_search(markov):
    ids = markov.model.generate([CHAR.encode("one"), CHAR.encode("two ")], NEW, BeamSearch(3), num_samples=2)
    expected = ["".join(CHAR.vocabulary[i] for i in row) for row in ids]
    assert markov.generate(["one", "two "], NEW, BeamSearch(3), num_samples=2) == expected
    # Stop strings cut what the whole search has found.
    stop = expected[0][3 + 6 : 3 + 8]
    stopped = [text[:n] + cut(text[n:], [stop])[0] for text, n in zip(expected, [3, 3, 4, 4], strict=True)]
    assert markov.generate(["one", "two "], NEW, BeamSearch(3), num_samples=2, stop=stop) == stopped
    assert stopped[0] != expected[0]


@pytest.mark.parametrize(
    "setting",
    [{"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.9}, {"min_p": 0.1}, {"repetition_penalty": 1.1}],
)
@pytest.mark.parametrize("sampler", ["greedy", Sampler(), BeamSearch(2)])
def test_a_sampler_excludes_the_single_settings(spellers, sampler, setting):
    for call in (spellers["char"].generate, spellers["char"].stream):
        with pytest.raises(ValueError, match="takes the place of.*repetition_penalty.*Received") as error:
            call("one", 5, sampler=sampler, **setting)
        assert f"{next(iter(setting))}={next(iter(setting.values()))}" in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"text": "oNe"}, ValueError, r"'N' \(U\+004E\).*position 1"),
        ({"text": ""}, ValueError, "empty"),
        ({"text": 3}, TypeError, "`text.*string.*Received: int"),
        ({"text": None}, TypeError, "`text.*string.*Received: NoneType"),
        ({"text": b"one"}, TypeError, "`text.*string.*Received: bytes"),
        ({"max_new_tokens": -1}, ValueError, "max_new_tokens.*-1"),
        ({"max_new_tokens": 1.5}, ValueError, "max_new_tokens.*1.5"),
        ({"temperature": -1.0}, ValueError, "temperature.*-1"),
        ({"top_p": 1.5}, ValueError, "top_p.*1.5"),
        ({"sampler": "random"}, ValueError, "sampler.*greedy.*random"),
        ({"seed": -1}, ValueError, "seed.*-1"),
        ({"stop": ""}, ValueError, "`stop`.*empty"),
        ({"stop": ["a", ""]}, ValueError, "`stop`.*empty"),
        ({"stop": ["a", 3]}, ValueError, r"`stop`.*\['a', 3\]"),
        ({"stop": b"a"}, ValueError, "`stop`.*b'a'"),
        ({"stop": 3}, ValueError, "`stop`.*3"),
        ({"stop_token_ids": 99}, ValueError, "stop_token_ids.*99"),
    ],
)
def test_errors_come_at_the_call(spellers, arguments, error, message):
    settings = {"max_new_tokens": 5, **arguments}
    text = settings.pop("text", "one")
    for call in (spellers["char"].generate, spellers["char"].stream):
        with pytest.raises(error, match=message):
            call(text, **settings)


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        (["one", "tWo"], ValueError, r"'W' \(U\+0057\)"),
        (["one", ""], ValueError, "Prompt 1 is empty"),
        (["one", None], TypeError, "string.*NoneType"),
        ([["one"]], TypeError, "string.*list"),
    ],
)
def test_errors_in_a_list(spellers, texts, error, message):
    with pytest.raises(error, match=message):
        spellers["char"].generate(texts, 5)


def test_what_cannot_be_streamed(spellers):
    with pytest.raises(TypeError, match="string.*list"):
        spellers["char"].stream(["one"], 5)
    with pytest.raises(ValueError, match="beam search cannot be streamed"):
        spellers["char"].stream("one", 5, sampler=BeamSearch(2))


# Stop strings


STOPS = [
    ("xy. abc. z", "."),
    ("xy. abc. z", "c. z"),  # over several tokens
    ("xy. abc. z", "zx"),  # over the end of the saying
    ("xyabcz", "b"),  # within a token of byte pairs
    ("xyabcz", "bcz"),
    ("xyabcz", ["q", "za", "zx"]),
    ("xyabczabd", ["abd", "ab"]),  # one begins like another
    ("xyabczabd", ["abd", "abcd"]),
    ("xyabczabd", ["abczabdq", "abczabd"]),
    ("xyabczabd", ["abcz", "bc"]),  # overlapping
    ("xyabczabd", ["yabczabd", "z", "abc"]),
    ("xababac", "abac"),  # begins again within its own beginning
    ("xaaaab", "aab"),
    ("é€😀éab€", "éa"),
    ("é€😀éab€", ["😀é", "€"]),
    ("abcabcabc", "abc"),  # at once
    ("xyz", "abc"),  # not there
    ("xyza", "abc"),  # begins at the end
    ("xyz", "xyz" * 20),  # longer than the text
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("search", [1, 5, 32])
def test_stop_strings(spellers, name, search, monkeypatch):
    monkeypatch.setattr(text_generator, "_TOKENS_A_SEARCH", search)
    generator = spellers[name]
    for saying, stop in STOPS:
        say(generator, {"no. ": saying})
        whole = whole_characters(to_bytes(name, first_tokens(name, saying)))
        expected = cut(whole, [stop] if isinstance(stop, str) else stop)[0]
        assert generator.generate("no. ", NEW, stop=stop) == "no. " + expected, (saying, stop)


def test_which_stop_string_is_first_does_not_depend_on_the_pieces():
    # "abcd" begins before "c", which is complete before it: what comes later must not change what was decided.
    for size in range(1, 7):
        continuation = _Continuation(BYTE, ["abcd", "c"])
        for end in range(size, 12 + size, size):
            if not continuation.ended:
                continuation.read(list(b"xabcdexabcde"[:end]))
        assert (size, continuation.all()) == (size, "xab")


@pytest.mark.parametrize("search", [4, 5, 6, 7, 8])
def test_stop_strings_at_the_border_of_a_search(spellers, search, monkeypatch):
    monkeypatch.setattr(text_generator, "_TOKENS_A_SEARCH", search)
    generator = spellers["byte"]
    say(generator, {"no": "uvwxyzabc"})
    assert generator.generate("no", NEW, stop="xyz") == "nouvw"
    assert generator.generate("no", NEW, stop=["yzab", "q"]) == "nouvwx"


def test_a_stop_string_that_begins_in_the_prompt_does_not_count(spellers):
    generator = spellers["char"]
    say(generator, {"one. ab": "c. abd abc"})
    assert generator.generate("one. ab", NEW, stop=["abc", "one"]) == "one. abc. abd "
    assert "".join(generator.stream("one. ab", NEW, stop=["abc", "one"])) == "c. abd "


@pytest.mark.parametrize("search", [3, 32])
def test_a_row_that_stops_does_not_disturb_the_others(spellers, search, monkeypatch):
    monkeypatch.setattr(text_generator, "_TOKENS_A_SEARCH", search)
    generator = spellers["char"]
    sayings = {"one": "x.", "two ": "abcdefghij.", "and": "no stop"}
    say(generator, sayings)
    expected = [prompt + cut((saying * NEW)[:NEW], ["."])[0] for prompt, saying in sayings.items()]
    assert [len(text) for text in expected] == [4, 14, 3 + NEW]
    assert generator.generate(list(sayings), NEW, stop=".") == expected
    assert generator.generate(list(sayings)[::-1], NEW, stop=".") == expected[::-1]


@pytest.mark.parametrize("stop", ["cd", None])
def test_no_tokens_are_generated_long_after_a_stop_string(spellers, stop, monkeypatch):
    monkeypatch.setattr(text_generator, "_TOKENS_A_SEARCH", 5)
    generator, decodings = spellers["char"], watch(monkeypatch, spellers["char"].model)
    say(generator, {"one": "abcdefghijkl"})
    generator.generate("one", NEW, stop=stop)
    assert [decoding.lengths[0] - 3 for decoding in decodings] == [5 if stop else NEW]


def watch(monkeypatch, model):
    """The list that the decodings which the model starts will stand in."""
    decodings, start = [], model.start_decoding

    def start_and_tell(*args, **kwargs):
        decodings.append(start(*args, **kwargs))
        return decodings[-1]

    monkeypatch.setattr(model, "start_decoding", start_and_tell)
    return decodings


@needs_library
@pytest.mark.parametrize("stop", [None, ".", "z<"])
def test_stop_tokens(spellers, stop):
    generator = spellers["pairs"]
    ids = [*PAIRS.encode("abc xyz"), END, *PAIRS.encode("ab.")]
    say(generator, {"no": ids})
    assert generator.generate("no", NEW, stop=stop, stop_token_ids=[END, 5]) == "noabc xyz"
    assert generator.generate("no", NEW, stop=stop, stop_token_ids=END) == "noabc xyz"
    assert "".join(generator.stream("no", NEW, stop=stop, stop_token_ids=END)) == "abc xyz"
    # Otherwise it is shown, and only a token of that id stops: text that spells it does not.
    shown = to_bytes("pairs", first_tokens("pairs", ids)).decode()
    assert shown.startswith("abc xyz<end>ab.abc xyz<end>")
    assert generator.generate("no", NEW, stop=stop) == "no" + cut(shown, [stop] if stop else [])[0]
    say(generator, {"no": "x<end>y"})
    assert generator.generate("no", NEW, stop_token_ids=END) == "no" + ("x<end>y" * NEW)[:NEW]


# stream


def set_pieces(monkeypatch, pieces):
    """Pieces of one token, or of 1, 2, 4, ... tokens, or as time goes."""
    if pieces != "timed":
        monkeypatch.setattr(generative_mixin, "_SECONDS_A_PIECE", {"single": 0.0, "growing": 1e9}[pieces])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pieces", ["single", "growing", "timed"])
def test_a_stream_joined_is_what_generate_adds(spellers, name, pieces, monkeypatch):
    set_pieces(monkeypatch, pieces)
    generator = spellers[name]
    for saying, stop in [*STOPS, ("é€😀éab", None), ("xyz abc", None)]:
        say(generator, {"no. ": saying})
        stops = [] if stop is None else [stop] if isinstance(stop, str) else stop
        expected = cut(whole_characters(to_bytes(name, first_tokens(name, saying))), stops)[0]
        streamed = list(generator.stream("no. ", NEW, stop=stop))
        assert "".join(streamed) == expected, (saying, stop)
        assert all(streamed), (saying, stop)
        assert generator.generate("no. ", NEW, stop=stop) == "no. " + expected, (saying, stop)


@pytest.mark.parametrize("max_new_tokens", range(1, 14))
def test_pieces_are_whole_characters(spellers, max_new_tokens, monkeypatch):
    set_pieces(monkeypatch, "single")
    generator, saying = spellers["byte"], "aé€😀"  # 1, 2, 3 and 4 bytes
    say(generator, {"no": saying})
    ends = [1, 3, 6, 10, 11, 13]  # of the characters, in bytes
    expected = (saying * 2)[: sum(end <= max_new_tokens for end in ends)]
    assert list(generator.stream("no", max_new_tokens)) == list(expected)
    assert generator.generate("no", max_new_tokens) == "no" + expected


@pytest.mark.parametrize(
    ("ids", "pieces"),
    [
        ([0xFF, 0x61], ["\ufffd", "a"]),
        ([0x80, 0x61], ["\ufffd", "a"]),
        ([0xC3, 0x61], ["\ufffda"]),  # two bytes expected, the second is none
        ([0xE2, 0x82, 0x61], ["\ufffda"]),
        ([0xF0, 0x9F, 0x98, 0xC3, 0xA9], ["\ufffd", "é"]),
        ([0xC0, 0x80, 0x61], ["\ufffd", "\ufffd", "a"]),
        ([0x61, 0xF0, 0x9F, 0x98], ["a"]),  # never complete
    ],
)
def test_bytes_that_are_no_utf8(spellers, ids, pieces, monkeypatch):
    set_pieces(monkeypatch, "single")
    generator = spellers["byte"]
    say(generator, {"no": ids})
    assert list(generator.stream("no", len(ids))) == pieces
    assert generator.generate("no", len(ids)) == "no" + "".join(pieces)


@pytest.mark.parametrize(
    ("saying", "stop", "pieces"),
    [
        ("xabyabz", "abc", ["x", "aby", "abz"]),
        ("xabyab", "abc", ["x", "aby", "ab"]),  # given out at the end, for it was none
        ("xababcz", "abc", ["x", "ab"]),
        ("xaabaac", "aac", ["x", "aab"]),
        ("xabcyz", ["abd", "bcyq"], ["x", "a", "bcyz"]),
        ("xyz", "z", ["x", "y"]),
        ("xé€y", "é€€", ["x", "é€y"]),
        ("abc", "abc", []),
        ("ab", "abc", ["ab"]),
    ],
)
def test_what_may_begin_a_stop_string_is_held_back(spellers, saying, stop, pieces, monkeypatch):
    set_pieces(monkeypatch, "single")
    generator = spellers["byte"]
    say(generator, {"no": saying})
    assert list(generator.stream("no", len(saying.encode()), stop=stop)) == pieces


@pytest.mark.parametrize("how", ["closed", "dropped", "closed at once", "at the end", "stopped", "error"])
def test_a_stream_frees_its_state(spellers, how, monkeypatch):
    set_pieces(monkeypatch, "single")
    generator, decodings = spellers["char"], watch(monkeypatch, spellers["char"].model)
    say(generator, {"one": "abc"})
    stream = generator.stream("one", NEW, stop="ca" if how == "stopped" else None)
    state = weakref.ref(decodings.pop())
    assert state() is not None
    if how != "closed at once":
        assert next(stream) == "a"
    if how in ("at the end", "stopped"):
        assert len(list(stream)) > 0
    elif how == "error":
        with pytest.raises(KeyError):
            stream.throw(KeyError)
    elif how != "dropped":
        stream.close()
    if how in ("dropped", "closed at once"):
        del stream
    else:
        assert list(stream) == []
    gc.collect()
    assert state() is None


def test_streams_side_by_side(spellers):
    generator = spellers["byte"]
    say(generator, {"one": "abc", "two": "xyz"})
    one, two = generator.stream("one", 13), generator.stream("two", 13)
    texts = ["", ""]
    for pieces in itertools.zip_longest(one, two, fillvalue=""):
        texts = [text + piece for text, piece in zip(texts, pieces, strict=True)]
    assert texts == ["abcabcabcabca", "xyzxyzxyzxyzx"]


# The text of new tokens, for any bytes, stop strings and pieces

SOME_BYTES = [*b"aaabbc", *"é".encode(), *"€".encode(), *"😀".encode(), 0xFF, 0xC3, 0xED, 0xA0]


def random_cases(count):
    generator = np.random.default_rng(11)
    for _ in range(count):
        parts = [b"a", b"b", b"c", "é".encode(), "€".encode(), "😀".encode(), bytes(generator.choice(SOME_BYTES, 2))]
        data = b"".join(generator.choice(np.array(parts, object), int(generator.integers(0, 30))))
        data = data[: int(generator.integers(0, len(data) + 1))]
        if data.endswith(b"\xed\xa0"):  # Python waits for the third byte of what can be no character
            data += b"a"
        text, stops = data.decode("utf-8", "replace"), []
        for _ in range(int(generator.integers(0, 4))):
            start, length = int(generator.integers(0, len(text) + 1)), int(generator.integers(1, 6))
            letters = "".join(generator.choice(list("abcé€😀\ufffd"), length))
            stops.append(text[start : start + length] + letters[: int(generator.integers(0, 2))] or letters)
        sizes = []
        while sum(sizes) < len(data):
            sizes.append(int(generator.integers(1, 6)))
        yield data, stops, list(itertools.accumulate(sizes))


def test_text_of_random_pieces():
    num_stopped = num_held = 0
    for data, stops, ends in random_cases(1000):
        case = (data, stops, ends)
        expected, stopped = cut(whole_characters(data), stops)
        continuation, taken = _Continuation(BYTE, stops), ""
        for end in ends:
            continuation.read(list(data[:end]))
            taken += continuation.take()
            there = data[:end] if not data[:end].endswith(b"\xed\xa0") else data[: end - 2]
            known, ended = cut(whole_characters(there), stops)
            assert continuation.ended == ended, case
            assert taken == (known if ended else without_beginning(known, stops)), case
            num_held += taken != known
            if ended:
                break
        taken += continuation.rest()
        assert (taken, continuation.all(), continuation.ended) == (expected, expected, stopped), case
        assert continuation.rest() == continuation.take() == "", case
        num_stopped += stopped
    assert 200 < num_stopped < 800 and num_held > 200


def without_beginning(text, stops):
    beginnings = [stop[:n] for stop in stops for n in range(1, len(stop))]
    return text[: len(text) - max((len(one) for one in beginnings if text.endswith(one)), default=0)]


@pytest.mark.parametrize(
    "data", [b"\xed\xa0\x80a", b"a\xed\xa0b", b"\xf4\x90\x80\x80\xc3\xa9", b"\xe2\x82\xe2\x82\xac"]
)
def test_broken_characters_do_not_depend_on_the_pieces(data):
    for borders in itertools.product([False, True], repeat=len(data) - 1):
        continuation = _Continuation(BYTE, [])
        for end in [*(place for place, border in enumerate(borders, 1) if border), len(data)]:
            continuation.read(list(data[:end]))
        assert continuation.all() == data.decode("utf-8", "replace")


# score


def test_score_is_the_log_likelihood(markov):
    texts = ["the first text", "two", "€😀é a third", "t", ""]
    table = keras.ops.convert_to_numpy(markov.model.table).astype("float64")
    log_probs = table - np.log(np.exp(table).sum(axis=1, keepdims=True))
    places = [[CHAR.vocabulary.index(character) for character in text] for text in texts]
    expected = {
        "log_likelihood": np.array([sum(log_probs[pair] for pair in itertools.pairwise(row)) for row in places]),
        "token_counts": np.array([13, 2, 10, 0, 0]),
    }
    scores = markov.score(texts)
    assert scores["token_counts"].dtype == np.int32 and scores["log_likelihood"].dtype == np.float32
    assert_close(scores, expected, 1e-5)
    of_ids = markov.model.score([CHAR.encode(text) for text in texts])
    assert_close(scores, of_ids, 0)
    assert_close(markov.score(tuple(texts[::-1])), {name: values[::-1] for name, values in expected.items()}, 1e-5)
    for number, text in enumerate(texts):
        alone = {name: values[number : number + 1] for name, values in expected.items()}
        assert_close(markov.score(text), alone, 1e-5)
        assert_close(markov.score([text]), alone, 1e-5)


@pytest.mark.parametrize(
    ("texts", "error", "message"),
    [
        ("oNe", ValueError, r"'N' \(U\+004E\)"),
        (["one", 3], TypeError, "string.*int"),
        (3, TypeError, "`text.*string.*Received: int"),
        (None, TypeError, "`text.*string.*Received: NoneType"),
        (b"one", TypeError, "`text.*string.*Received: bytes"),
    ],
)
def test_score_errors(spellers, texts, error, message):
    with pytest.raises(error, match=message):
        spellers["char"].score(texts)


# Models that read a source

# The marks are characters: \0 is padding, \2 begins a target, \3 ends it.
MARKED = CharTokenizer("\0\2\3abcdefgh")
SOURCES = ["abc", "h", "badcafe"]


@pytest.fixture(scope="module")
def answering():
    model = RecurrentSeq2Seq(MARKED.vocabulary_size, 1, 2, hidden_dim=5, mask_zero=True)
    generator = np.random.default_rng(4)
    for weight in model.weights:
        weight.assign(1.5 * generator.standard_normal(weight.shape))
    return TextGenerator(model, MARKED)


def test_answers_hold_neither_source_nor_marks(answering):
    """They are what the model's `generate` gives for the ids, and that, stopped nowhere, up to the end token."""
    model, ids = answering.model, [MARKED.encode(source) for source in SOURCES]
    texts = answering.generate(SOURCES, 9)
    assert texts == [MARKED.decode(answer) for answer in model.generate({"source": ids}, 9)]
    whole = [MARKED.decode(answer) for answer in model.generate({"source": ids}, 9, stop_token_ids=[])]
    assert texts == [text.partition("\3")[0] for text in whole] and len(set(texts)) == 3
    assert any("\3" in text for text in whole), "no answer ends"
    assert answering.generate(SOURCES, 9, stop_token_ids=[]) == whole
    assert answering.generate(SOURCES[1], 9) == texts[1]
    assert answering.generate([], 9) == []
    settings = {"temperature": 1.0, "seed": 3, "num_samples": 2, "stop_token_ids": []}
    samples = answering.generate(SOURCES, 9, **settings)
    alone = model.generate({"source": ids}, 9, Sampler(), seed=3, num_samples=2, stop_token_ids=[])
    assert samples == [MARKED.decode(answer) for answer in alone] and len(set(samples)) == 6


def test_answers_stop_and_stream(answering):
    (text,) = answering.generate(SOURCES[2:], 9, stop_token_ids=[])
    stop = text[3:5]
    for arguments in ({}, {"stop": stop}):
        expected = text[: text.index(stop)] if arguments else text
        assert answering.generate(SOURCES[2], 9, stop_token_ids=[], **arguments) == expected
        assert "".join(answering.stream(SOURCES[2], 9, stop_token_ids=[], **arguments)) == expected


def test_score_of_targets(answering):
    targets = ["cba", "", "efacdab"]
    scores = answering.score(SOURCES, targets)
    assert scores["token_counts"].tolist() == [4, 1, 8]
    for number, (source, target) in enumerate(zip(SOURCES, targets, strict=True)):
        row = np.array([1, *MARKED.encode(target), 2])
        inputs = {"source": MARKED.encode(source)[None], "target": row[None, :-1]}
        log_probs = ops.convert_to_numpy(ops.log_softmax(answering.model(inputs)))[0]
        assert_close(scores["log_likelihood"][number], log_probs[range(len(row) - 1), row[1:]].sum(), 1e-5)
    assert_close(answering.score("h", "")["log_likelihood"][0], scores["log_likelihood"][1], 1e-5)


def test_wrong_sources_and_targets(answering, markov):
    with pytest.raises(ValueError, match="`targets` go with a model that reads a source. .*Seq2Seq and no targets"):
        answering.score("abc")
    with pytest.raises(ValueError, match="`targets` go with a model that reads a source. Received: Chain and targets"):
        markov.score("abc", "abc")
    with pytest.raises(ValueError, match="a target for each source. Received: 2, 1"):
        answering.score(["abc", "h"], ["a"])
    with pytest.raises(TypeError, match="`targets` must be a string or a list of strings. Received: int"):
        answering.score("abc", 5)
    with pytest.raises(ValueError, match="Source 1 is empty"):
        answering.generate(["abc", ""], 3)
    with pytest.raises(ValueError, match="x"):
        answering.generate("xyz", 3)


def test_a_saved_generator_answers_the_same(answering, tmp_path):
    """In a process of its own: `tests/models/recurrent_seq2seq_test.py`."""
    answering.save(tmp_path)
    loaded = TextGenerator.load(tmp_path)
    assert type(loaded.model) is RecurrentSeq2Seq and loaded.generate(SOURCES, 9) == answering.generate(SOURCES, 9)


# save and load

FILES = {"model.keras", "tokenizer.json", "text_generator.json"}


def weights(generator):
    return [keras.ops.convert_to_numpy(weight) for weight in generator.model.weights]


def same(one, other):
    return one.tokenizer == other.tokenizer and all(map(np.array_equal, weights(one), weights(other)))


@needs_library
def test_a_fresh_process_says_the_same(tmp_path):
    model = LittleTransformer(
        PAIRS.vocabulary_size,
        32,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0, seed=3),
        seed=5,
    )
    generator = TextGenerator(model, PAIRS)
    generator.save(tmp_path / "saved")
    assert {path.name for path in (tmp_path / "saved").iterdir()} == FILES
    prompt, scored = "abc", "abc é."
    code = """
        import json
        import sys

        import keras_lt

        generator = keras_lt.TextGenerator.load(sys.argv[1])
        scores = generator.score(sys.argv[3])
        print(json.dumps([
            generator.generate(sys.argv[2], 8),
            generator.generate(sys.argv[2], 8, temperature=1.0, top_p=0.9, seed=3),
            float(scores["log_likelihood"][0]), int(scores["token_counts"][0]),
            repr(generator),
        ]))
    """
    printed = fresh_process(
        code, tmp_path / "saved", prompt, scored, cwd=tmp_path, PYTHONHASHSEED="77", PYTHONIOENCODING="utf-8"
    )
    greedy, sampled, log_likelihood, token_count, shown = json.loads(printed.splitlines()[-1])
    assert greedy == generator.generate(prompt, 8)
    assert sampled == generator.generate(prompt, 8, temperature=1.0, top_p=0.9, seed=3)
    assert greedy != sampled and greedy.startswith(prompt) and sampled.startswith(prompt)
    scores = generator.score(scored)
    assert token_count == scores["token_counts"][0] == len(PAIRS.encode(scored)) - 1
    assert_close(np.float64(log_likelihood), np.float64(scores["log_likelihood"][0]), 1e-5)
    assert shown == repr(generator)


@pytest.mark.parametrize("kind", [pathlib.Path, str])
def test_save_and_load(tmp_path, kind):
    directory = tmp_path / "a folder" / "é"
    generator = chain(CHAR)
    generator.save(kind(directory))
    assert {path.name for path in directory.iterdir()} == FILES
    loaded = TextGenerator.load(kind(directory))
    assert same(loaded, generator)
    assert loaded.model.get_config() == generator.model.get_config()
    assert type(loaded) is TextGenerator and type(loaded.model) is Chain
    description = json.loads((directory / "text_generator.json").read_text(encoding="utf-8"))
    assert description["keras_lt_version"] == keras_lt.__version__


def test_a_directory_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    generator = chain(BYTE)
    generator.save("saved")
    assert same(TextGenerator.load("saved"), generator)
    generator.save(".")
    assert {path.name for path in tmp_path.iterdir()} == {"saved", *FILES}


def test_saving_again_replaces_what_was_there(tmp_path):
    old, new = chain(CharTokenizer("abc"), seed=1), chain(CharTokenizer("cbax"), seed=2)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "model.keras").write_text("mine, too")
    old.save(tmp_path)
    new.save(tmp_path)
    assert same(TextGenerator.load(tmp_path), new)
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "more", *FILES}
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert (tmp_path / "more" / "model.keras").read_text() == "mine, too"
    TextGenerator.load(tmp_path).save(tmp_path)
    assert same(TextGenerator.load(tmp_path), new)


@pytest.mark.parametrize("part", ["model", "tokenizer"])
def test_what_cannot_be_saved_leaves_the_old(tmp_path, part, monkeypatch):
    old, new = chain(CharTokenizer("abc"), seed=1), chain(CharTokenizer("cba"), seed=2)
    old.save(tmp_path)

    def save(path, *args, **kwargs):
        pathlib.Path(path).write_text("half")
        raise OSError("no space left")

    monkeypatch.setattr(type(getattr(new, part)), "save", lambda self, path: save(path))
    with pytest.raises(OSError, match="no space left"):
        new.save(tmp_path)
    monkeypatch.undo()
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert same(TextGenerator.load(tmp_path), old)


def interrupt_save(generator, directory, number, monkeypatch):
    """Save, and break off at the n-th `os.replace`; returns whether there was one."""
    calls, replace = itertools.count(1), os.replace

    def replace_or_raise(*args, **kwargs):
        if next(calls) == number:
            raise KeyboardInterrupt
        return replace(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace_or_raise)
        # What is killed does not clean up.
        patch.setattr(shutil, "rmtree", lambda *args, **kwargs: None)
        try:
            generator.save(directory)
        except KeyboardInterrupt:
            return True
    return False


def outcome(directory, old, new):
    try:
        loaded = TextGenerator.load(directory)
    except ValueError as error:
        return "error" if "interrupted" in str(error) else "unclear error"
    return "old" if same(loaded, old) else "new" if same(loaded, new) else "mixture"


@pytest.mark.parametrize("vocabulary", ["abc", "cba", "abcd"])
def test_a_killed_save_is_never_a_mixture(tmp_path, vocabulary, monkeypatch):
    old, new = chain(CharTokenizer("abc"), seed=1), chain(CharTokenizer(vocabulary), seed=2)
    outcomes = []
    for number in itertools.count(1):
        directory = tmp_path / str(number)
        old.save(directory)
        killed = interrupt_save(new, directory, number, monkeypatch)
        outcomes.append(outcome(directory, old, new))
        # The same process, or another with its number, can save again.
        new.save(directory)
        assert same(TextGenerator.load(directory), new)
        if not killed:
            break
    assert len(outcomes) > 3 and outcomes[0] == "old" and outcomes[-1] == "new"
    assert set(outcomes) <= ({"old", "new"} if vocabulary == "abc" else {"old", "error", "new"})


def test_a_killed_first_save_is_no_saved_generator(tmp_path, monkeypatch):
    generator = chain(CharTokenizer("abc"))
    for number in itertools.count(1):
        directory = tmp_path / str(number)
        if not interrupt_save(generator, directory, number, monkeypatch):
            break
        with pytest.raises(FileNotFoundError, match="text_generator.json"):
            TextGenerator.load(directory)
    assert number > 3


@pytest.mark.parametrize("missing", [*({name} for name in sorted(FILES)), FILES])
def test_missing_files_are_named(tmp_path, missing):
    for name in FILES - missing:
        (tmp_path / name).write_text("{}")
    with pytest.raises(FileNotFoundError) as error:
        TextGenerator.load(tmp_path)
    assert str(tmp_path) in str(error.value)
    assert all((name in str(error.value)) == (name in missing) for name in FILES)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        TextGenerator.load(tmp_path / "nowhere")


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "saved").write_text("mine")
    with pytest.raises(FileNotFoundError):
        TextGenerator.load(tmp_path / "saved")
    with pytest.raises(FileExistsError):
        chain(BYTE).save(tmp_path / "saved")
    assert (tmp_path / "saved").read_text() == "mine"


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("text_generator.json", b""),
        ("text_generator.json", b"{"),
        ("text_generator.json", b"[]"),
        ("text_generator.json", b"{}"),
        ("text_generator.json", b"3"),
        ("text_generator.json", b"null"),
        ("text_generator.json", b'"text"'),
        ("text_generator.json", b"\xff\xfe"),
        ("tokenizer.json", b""),
        ("tokenizer.json", b"{}"),
        ("model.keras", b""),
        ("model.keras", b"PK\x03\x04 and nothing more"),
    ],
)
def test_damaged_files(tmp_path, name, content):
    chain(CharTokenizer("abc")).save(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name):
        TextGenerator.load(tmp_path)


def test_files_of_two_generators(tmp_path):
    chain(CharTokenizer("abc")).save(tmp_path / "one")
    chain(CharTokenizer("cba")).save(tmp_path / "two")
    chain(CharTokenizer("abcd")).save(tmp_path / "larger")
    shutil.copy(tmp_path / "two" / "tokenizer.json", tmp_path / "one")
    with pytest.raises(ValueError, match="tokenizer.json is not the tokenizer"):
        TextGenerator.load(tmp_path / "one")
    shutil.copy(tmp_path / "larger" / "model.keras", tmp_path / "two")
    with pytest.raises(ValueError, match=r"vocabulary_size=4.*vocabulary_size=3"):
        TextGenerator.load(tmp_path / "two")


def test_training_goes_on(tmp_path):
    generator = chain(CharTokenizer("abc"))
    generator.model.compile(keras_lt.optimizers.SmoothedRMS(), keras_lt.losses.TokenCrossentropy(), jit_compile=False)
    token_ids = np.random.default_rng(0).integers(0, 3, (5, 8))
    batch = token_ids[:, :-1], token_ids[:, 1:]
    generator.model.train_on_batch(*batch)
    generator.save(tmp_path)
    loaded = TextGenerator.load(tmp_path)
    state = [keras.ops.convert_to_numpy(variable) for variable in loaded.model.optimizer.variables]
    assert_close(state, [keras.ops.convert_to_numpy(variable) for variable in generator.model.optimizer.variables])
    assert int(loaded.model.optimizer.iterations) == 1 and sum(np.any(values) for values in state) >= 3
    before = weights(loaded)
    for model in (generator.model, loaded.model):
        model.train_on_batch(*batch)
    assert_close(weights(loaded), weights(generator))
    assert max(np.abs(one - other).max() for one, other in zip(before, weights(loaded), strict=True)) > 1e-3


# What is joined


def test_repr():
    assert (
        repr(TextGenerator(Speller(256), BYTE))
        == "<TextGenerator Speller (16,384 parameters), ByteTokenizer (256 ids)>"
    )


def test_attributes(spellers):
    generator = spellers["byte"]
    assert type(generator.model) is Speller and generator.tokenizer is BYTE


@pytest.mark.parametrize("size", [255, 257])
def test_sizes_must_be_the_same(size):
    with pytest.raises(ValueError, match=f"model.vocabulary_size={size}.*tokenizer.vocabulary_size=256"):
        TextGenerator(Speller(size), BYTE)


@pytest.mark.parametrize("tokenizer", [None, "abc", ByteTokenizer, lambda text: [1, 2]])
def test_what_is_no_tokenizer(tokenizer):
    with pytest.raises(TypeError, match=f"Tokenizer. Received: {type(tokenizer).__name__}"):
        TextGenerator(Speller(256), tokenizer)


def test_a_model_that_does_not_generate():
    model = keras.Sequential([keras.layers.Dense(3)])
    model.vocabulary_size = 256
    with pytest.raises(TypeError, match="that generates, such as LittleTransformer. Received: Sequential"):
        TextGenerator(model, BYTE)
    with pytest.raises(TypeError, match="that generates, such as LittleTransformer. Received: NoneType"):
        TextGenerator(None, BYTE)
