"""What a SavedModel gives is what Python gives.

Every export traces all its signatures, which takes seconds: tests share a few small ones. Python's own loop
is compiled once for each of the two models that have texts, and its `score` runs eagerly.
"""

import codecs
import contextlib
import functools
import importlib.util
import itertools
import json
import os
import pathlib
import shutil
import threading
import time

import keras
import numpy as np
import pytest

from keras_lt import TextGenerator
from keras_lt.generation import Sampler
from keras_lt.models import LittleTransformer, presets
from keras_lt.serving import export_saved_model
from keras_lt.tokenizers import BytePairTokenizer, ByteTokenizer, CharTokenizer
from model_testing import random_ids, small, uncached_logits
from testing import BACKEND, ROOT, assert_close, fresh_process, needs_tensorflow, to_numpy

tf = pytest.importorskip("tensorflow")

# Not in the order of the code points; outside the basic plane, a combining mark, NUL, a byte order mark.
CHARACTERS = "zabc\ufeffde 😀fg\u0301h\x00ijk\nl\U0010ffffmé€"
CHAR = CharTokenizer(CHARACTERS)
LIMIT = 13
SETTINGS = {"max_new_tokens": 0, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0}
# 1 token, some, as many as the context, more than it holds
PROMPTS = ["e", "abc 😀e\u0301", "\ufeff\x00\U0010ffff\n", "hijklmé€hijkl", "abcabcabcabc abc abc"]
SAMPLED = [
    {"temperature": 0.7, "seed": 5},
    {"temperature": 1.5, "top_k": 7, "seed": 0},
    {"temperature": 1.0, "top_p": 0.8, "seed": 2**31 - 1},
    {"temperature": 1.2, "top_k": 9, "top_p": 0.9, "seed": 5},
]


@contextlib.contextmanager
def eagerly():
    before = tf.config.functions_run_eagerly()
    tf.config.run_functions_eagerly(True)
    try:
        yield
    finally:
        tf.config.run_functions_eagerly(before)


def call(served, signature, **inputs):
    """A signature's outputs as NumPy arrays; settings that are not given are off."""
    function = served.signatures[signature]
    specs = function.structured_input_signature[1]
    inputs = {**{name: value for name, value in SETTINGS.items() if name in specs}, **inputs}
    tensors = {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
    return {name: output.numpy() for name, output in function(**tensors).items()}


def generate(served, prompts, max_new_tokens, **settings):
    texts = call(served, "generate", prompts=prompts, max_new_tokens=max_new_tokens, **settings)["texts"]
    return [text.decode("utf-8") for text in texts]


def generate_ids(served, rows, max_new_tokens, padding=0, **settings):
    """The rows as `generate_ids` continues them, each checked to be followed by zeros alone."""
    lengths = [len(row) for row in rows]
    token_ids = np.full((len(rows), max(lengths)), padding, "int32")
    for number, row in enumerate(rows):
        token_ids[number, : len(row)] = row
    inputs = {"token_ids": token_ids, "prompt_lengths": lengths, "max_new_tokens": max_new_tokens}
    outputs = call(served, "generate_ids", **inputs, **settings)
    assert outputs["token_ids"].shape == (len(rows), max(lengths) + max_new_tokens)
    for row, length in zip(outputs["token_ids"], outputs["lengths"], strict=True):
        assert not row[length:].any()
    return [row[:length].tolist() for row, length in zip(outputs["token_ids"], outputs["lengths"], strict=True)]


class Served:
    """A generator, the directory that holds its SavedModel, and what TensorFlow loads from there."""

    def __init__(self, generator, folder):
        self.generator = generator
        self.path = export_saved_model(generator, folder)

    @functools.cached_property
    def loaded(self):
        return tf.saved_model.load(self.path)


@pytest.fixture(scope="module")
def characters(tmp_path_factory):
    """Of a generator that was saved and loaded; then the files were deleted and the SavedModel moved."""
    folder = tmp_path_factory.mktemp("characters")
    model = small(vocabulary_size=CHAR.vocabulary_size, max_sequence_length=LIMIT, num_layers=1)
    TextGenerator(model, CHAR).save(folder / "saved")
    generator = TextGenerator.load(folder / "saved")
    served = Served(generator, folder / "before")
    assert served.path == str(folder / "before" / "1")
    shutil.rmtree(folder / "saved")
    (folder / "elsewhere").mkdir()
    served.path = shutil.move(served.path, folder / "elsewhere" / "7")
    (folder / "before").rmdir()
    return served


NEW = 20  # with the longest prompt as many as Python's loop has room for in one bucket


@pytest.fixture(scope="module")
def in_python(characters):
    """What Python's `generate` gives for `PROMPTS`; fewer new tokens are the first of these."""
    made = {}

    def get(max_new_tokens=NEW, **settings):
        key = json.dumps(settings)
        if key not in made:
            made[key] = characters.generator.generate(PROMPTS, NEW, **settings)
        return [text[: len(prompt) + max_new_tokens] for text, prompt in zip(made[key], PROMPTS, strict=True)]

    return get


@pytest.fixture(scope="module")
def byte_strings(tmp_path_factory):
    """Of a model for which the byte 0 is padding."""
    model = small(vocabulary_size=256, max_sequence_length=LIMIT, num_layers=1, mask_zero=True)
    return Served(TextGenerator(model, ByteTokenizer()), tmp_path_factory.mktemp("bytes"))


# In a process that has TensorFlow and nothing else


WITHOUT_KERAS = """
    import importlib, json, sys

    sys.modules["keras"] = sys.modules["keras_lt"] = None
    import tensorflow as tf

    for name in ("keras", "keras_lt"):
        try:
            importlib.import_module(name)
        except ImportError:
            continue
        raise SystemExit(f"{name} can be imported")
    signatures = tf.saved_model.load(sys.argv[1]).signatures
    answers = []
    for name, inputs in json.loads(sys.argv[2]):
        specs = signatures[name].structured_input_signature[1]
        outputs = signatures[name](**{key: tf.constant(value, specs[key].dtype) for key, value in inputs.items()})
        values = {key: output.numpy().tolist() for key, output in outputs.items()}
        values["texts"] = [text.decode("utf-8") for text in values.get("texts", [])]
        answers.append(values)
    print("\\n" + json.dumps(answers))
"""


def test_a_process_without_keras(characters, in_python):
    generator = characters.generator
    ids = random_ids(2, LIMIT, vocabulary_size=CHAR.vocabulary_size)
    settings = {**SETTINGS, "max_new_tokens": 17}
    encoded = [CHAR.encode(prompt).tolist() for prompt in PROMPTS]
    longest = max(map(len, encoded))
    rows = {"token_ids": [row + [-5] * (longest - len(row)) for row in encoded]}
    rows["prompt_lengths"] = [len(row) for row in encoded]
    calls = [("serving_default", {"token_ids": ids.tolist()})]
    if BACKEND == "tensorflow":
        calls += [("generate", {"prompts": PROMPTS, **settings, **more}) for more in [{}, *SAMPLED]]
        calls += [("generate_ids", {**rows, **settings}), ("score", {"texts": PROMPTS})]
    logits, *answers = json.loads(fresh_process(WITHOUT_KERAS, characters.path, json.dumps(calls)).splitlines()[-1])
    assert_close(np.array(logits["logits"]), to_numpy(generator.model(ids)), 1e-5)
    if BACKEND != "tensorflow":
        return
    # The random numbers are a hash of seed, row and place, and so the same in every process.
    for more, answer in zip([{}, *SAMPLED], answers, strict=False):
        assert answer["texts"] == in_python(17, **more)
    *_, continued, scores = answers
    rows = [row[:length] for row, length in zip(continued["token_ids"], continued["lengths"], strict=True)]
    assert [CHAR.decode(row) for row in rows] == in_python(17)
    check_scores(scores, generator, PROMPTS)


# Signatures


@needs_tensorflow
def test_signatures(characters):
    settings = {
        "max_new_tokens": ([], "int32"),
        "temperature": ([], "float32"),
        "top_k": ([], "int32"),
        "top_p": ([], "float32"),
        "seed": ([], "int32"),
    }
    ids, lengths, texts = ([None, None], "int32"), ([None], "int32"), ([None], "string")
    expected = {
        "serving_default": ({"token_ids": ids}, {"logits": ([None, None, CHAR.vocabulary_size], "float32")}),
        "generate_ids": (
            {"token_ids": ids, "prompt_lengths": lengths, **settings},
            {"token_ids": ids, "lengths": lengths},
        ),
        "generate": ({"prompts": texts, **settings}, {"texts": texts}),
        "score": ({"texts": texts}, {"log_likelihood": ([None], "float32"), "token_counts": lengths}),
    }
    assert signatures_of(characters) == expected


def signatures_of(served):
    def described(specs):
        return {name: (spec.shape.as_list(), spec.dtype.name) for name, spec in specs.items()}

    found = {}
    for name, function in served.loaded.signatures.items():
        args, inputs = function.structured_input_signature
        assert args == ()
        found[name] = described(inputs), described(function.structured_outputs)
        # What is written to the file, and shown by saved_model_cli, has the same names.
        assert {spec.name for spec in inputs.values()} == set(inputs)
    return found


# Logits


@pytest.mark.parametrize("batch_size", [1, 7])
@pytest.mark.parametrize("length", [1, 7, LIMIT])
def test_logits(characters, batch_size, length):
    ids = random_ids(batch_size, length, low=0, vocabulary_size=CHAR.vocabulary_size)
    logits = call(characters.loaded, "serving_default", token_ids=ids)["logits"]
    assert logits.dtype == "float32"
    assert_close(logits, to_numpy(characters.generator.model(ids)), 1e-5)


@needs_tensorflow
def test_logits_of_an_empty_batch(characters):
    logits = call(characters.loaded, "serving_default", token_ids=np.zeros((0, 5)))["logits"]
    assert logits.shape == (0, 5, CHAR.vocabulary_size)


@needs_tensorflow
@pytest.mark.parametrize("wrong", [-1, CHAR.vocabulary_size, 2**31 - 1])
def test_logits_of_ids_out_of_range(characters, wrong):
    """A graph cannot say what came without a check at every call: the row is NaN, as in any compiled step."""
    logits = call(characters.loaded, "serving_default", token_ids=[[1, 2, wrong, 3], [1, 2, 3, 4]])["logits"]
    assert np.isnan(logits[0, 2:]).all() and np.isfinite(logits[1]).all()


@needs_tensorflow
def test_logits_past_the_context(characters):
    logits = call(characters.loaded, "serving_default", token_ids=np.ones((2, LIMIT + 1)))["logits"]
    assert logits.shape[:2] == (2, LIMIT + 1) and np.isnan(logits[:, LIMIT:]).all()


# Texts


@needs_tensorflow
@pytest.mark.parametrize("max_new_tokens", [0, 1, 6, NEW])
def test_greedy_texts(characters, in_python, max_new_tokens):
    expected = in_python(max_new_tokens)
    assert [len(text) for text in expected] == [len(prompt) + max_new_tokens for prompt in PROMPTS]
    assert generate(characters.loaded, PROMPTS, max_new_tokens) == expected
    assert generate(characters.loaded, PROMPTS[::-1], max_new_tokens) == expected[::-1]
    for prompt, text in zip(PROMPTS, expected, strict=True):
        assert generate(characters.loaded, [prompt], max_new_tokens) == [text]


@needs_tensorflow
def test_greedy_texts_are_the_likeliest(characters):
    """Independent of Python's decode loop: plain calls of the model, without a cache."""
    texts = generate(characters.loaded, PROMPTS, 25)
    check_greedy(characters.generator.model, [CHAR.encode(text) for text in texts], [len(text) for text in PROMPTS])


@needs_tensorflow
def test_seven_prompts(characters, in_python):
    prompts = [*PROMPTS, PROMPTS[2], PROMPTS[0]]
    expected = in_python(6)
    assert generate(characters.loaded, prompts, 6) == [*expected, expected[2], expected[0]]


@needs_tensorflow
@pytest.mark.parametrize("settings", SAMPLED)
def test_sampled_texts(characters, in_python, settings):
    """One seed for all rows gives what Python's `generate` gives for it: the random numbers are counter-based."""
    texts = generate(characters.loaded, PROMPTS, NEW, **settings)
    assert texts == in_python(**settings) != in_python()
    assert texts == generate(characters.loaded, PROMPTS, NEW, **settings)
    assert texts != generate(characters.loaded, PROMPTS, NEW, **{**settings, "seed": 1})
    same = generate(characters.loaded, ["abc"] * 4, NEW, **settings)
    assert len(set(same)) == 4


@needs_tensorflow
def test_settings_that_leave_the_likeliest(characters):
    expected = generate(characters.loaded, PROMPTS, 9)
    for settings in ({"top_k": 1}, {"top_p": 0.0}):
        assert generate(characters.loaded, PROMPTS, 9, temperature=3.0, seed=3, **settings) == expected
    assert generate(characters.loaded, PROMPTS, 9, temperature=3.0, seed=3) != expected
    off = generate(characters.loaded, PROMPTS, 9, temperature=3.0, seed=3, top_k=10**6)
    assert off == generate(characters.loaded, PROMPTS, 9, temperature=3.0, seed=3)


@needs_tensorflow
@pytest.mark.parametrize("max_new_tokens", [0, 3])
def test_no_texts(characters, byte_strings, max_new_tokens):
    for served in (characters, byte_strings):
        assert generate(served.loaded, [], max_new_tokens) == []
        outputs = call(served.loaded, "score", texts=[])
        assert outputs["log_likelihood"].shape == outputs["token_counts"].shape == (0,)


# Ids


@needs_tensorflow
@pytest.mark.parametrize("padding", [0, -5, 10**6])
def test_generate_ids(characters, in_python, padding):
    rows = [CHAR.encode(prompt).tolist() for prompt in PROMPTS]
    for settings in [{}, SAMPLED[3]]:
        found = generate_ids(characters.loaded, rows, 9, padding=padding, **settings)
        assert found == [CHAR.encode(text).tolist() for text in in_python(9, **settings)]
    assert generate_ids(characters.loaded, rows, 0, padding=padding) == rows


@needs_tensorflow
def test_only_prompt_lengths_count(characters):
    ids = random_ids(3, 6, vocabulary_size=CHAR.vocabulary_size)
    lengths = [6, 1, 4]
    found = call(characters.loaded, "generate_ids", token_ids=ids, prompt_lengths=lengths, max_new_tokens=8)
    assert found["lengths"].tolist() == [14, 9, 12]
    rows = [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)]
    assert generate_ids(characters.loaded, rows, 8) == [
        row[:length].tolist() for row, length in zip(found["token_ids"], found["lengths"], strict=True)
    ]


@needs_tensorflow
@pytest.mark.parametrize("length", [0, 1, 4])
@pytest.mark.parametrize("max_new_tokens", [0, 3])
def test_no_rows_of_ids(characters, length, max_new_tokens):
    inputs = {"token_ids": np.zeros((0, length)), "prompt_lengths": [], "max_new_tokens": max_new_tokens}
    outputs = call(characters.loaded, "generate_ids", **inputs)
    assert outputs["token_ids"].shape == (0, length + max_new_tokens) and outputs["lengths"].shape == (0,)


# Scores


def check_scores(outputs, generator, texts, tolerance=1e-5):
    with eagerly():
        expected = generator.score(list(texts))
    np.testing.assert_array_equal(outputs["token_counts"], expected["token_counts"])
    assert_close(np.asarray(outputs["log_likelihood"], "float32"), expected["log_likelihood"], tolerance)


@needs_tensorflow
def test_scores(characters):
    texts = ["", "a", "ab", *PROMPTS, "é" * (LIMIT + 1), "é" * LIMIT, "hij kl\n" * 4]
    outputs = call(characters.loaded, "score", texts=texts)
    assert outputs["token_counts"].tolist() == [max(0, len(text) - 1) for text in texts]
    assert outputs["log_likelihood"][:2].tolist() == [0.0, 0.0]
    check_scores(outputs, characters.generator, texts)
    for text in ("", "a", "ab"):
        check_scores(call(characters.loaded, "score", texts=[text]), characters.generator, [text])


@needs_tensorflow
def test_scores_are_sums_of_log_probabilities(characters):
    """Independent of Python's `score`: plain calls of the model on the window before each token."""
    text = "hij kl\n" * 3
    ids = CHAR.encode(text)
    logits = uncached_logits(characters.generator.model, ids[:-1]).astype("float64")
    chosen = np.take_along_axis(logits, ids[1:, None], axis=1)[:, 0]
    expected = np.sum(chosen - np.log(np.exp(logits).sum(-1)))
    assert_close(call(characters.loaded, "score", texts=[text])["log_likelihood"], np.array([expected]), 1e-5)


# Bytes, and a model that masks


@needs_tensorflow
def test_texts_of_bytes(byte_strings):
    prompts = ["né😀", "a", "\ufeff\x00b\x00", "e\u0301\U0010ffff" * 3]
    rows = [list(prompt.encode("utf-8")) for prompt in prompts]
    texts = set()
    # At this temperature nearly every byte is possible: hardly any text is UTF-8 of its own accord.
    for settings in [{}, *({"temperature": 9.0, "seed": seed} for seed in range(4))]:
        sampler = Sampler(settings.get("temperature", 0.0))
        expected = byte_strings.generator.model.generate(rows, 19, sampler, seed=settings.get("seed", 0))
        for count in (1, 2, 19):
            found = generate(byte_strings.loaded, prompts, count, **settings)
            for prompt, row, ids, text in zip(prompts, rows, expected, found, strict=True):
                new = bytes(ids[len(row) : len(row) + count].tolist())
                assert text == prompt + codecs.getincrementaldecoder("utf-8")("replace").decode(new)
            texts.update(found)
        assert found == byte_strings.generator.generate(prompts, 19, **settings)
    assert any("\ufffd" in text for text in texts)


@needs_tensorflow
def test_bytes_that_are_padding(byte_strings):
    texts = ["", "\x00", "\x00\x00", "a\x00", "ab\x00cd", "abc\x00\x00", "\x00abc", "ab" * 9, "ab\x00c" * 5, "😀é" * 4]
    outputs = call(byte_strings.loaded, "score", texts=texts)
    check_scores(outputs, byte_strings.generator, texts)
    assert outputs["token_counts"].tolist() == [0, 0, 0, 0, 2, 2, 2, 17, 9, 23]
    ids = random_ids(7, LIMIT, low=0, vocabulary_size=6)
    assert (ids == 0).any()
    logits = call(byte_strings.loaded, "serving_default", token_ids=ids)["logits"]
    assert_close(logits, to_numpy(byte_strings.generator.model(ids)), 1e-5)


# Errors


@needs_tensorflow
@pytest.mark.parametrize(
    ("signature", "inputs", "parts"),
    [
        ("generate", {"prompts": ["ab", "aQ", "R"]}, ["no character that the vocabulary of 23 lacks", "[1] [aQ]"]),
        ("score", {"texts": ["ab", "aQ"]}, ["no character that the vocabulary of 23 lacks", "[1] [aQ]"]),
        ("generate", {"prompts": [b"ab", b"a\xff"]}, ["must be UTF-8", "[1]"]),
        ("score", {"texts": [b"a\xc3"]}, ["must be UTF-8", "[0]"]),
        ("generate", {"prompts": ["ab", ""]}, ["must not be empty", "[2 0]"]),
        ("generate", {"prompts": [""]}, ["must not be empty", "[0]"]),
        ("generate_ids", {"token_ids": [[1, 23]], "prompt_lengths": [2]}, ["from 0 to 22", "23"]),
        ("generate_ids", {"token_ids": [[1, -1]], "prompt_lengths": [2]}, ["from 0 to 22", "-1"]),
        ("generate_ids", {"token_ids": [[1, 2]], "prompt_lengths": [0]}, ["a token or more", "[0]"]),
        ("generate_ids", {"token_ids": [[1, 2]], "prompt_lengths": [-1]}, ["a token or more", "[-1]"]),
        ("generate_ids", {"token_ids": [[1, 2]] * 2, "prompt_lengths": [2, 3]}, ["at most T", "[2 3]"]),
        ("generate_ids", {"token_ids": [[1, 2]] * 2, "prompt_lengths": [2]}, ["a number for each row", "[2 1]"]),
        ("generate_ids", {"token_ids": [[1, 2]], "prompt_lengths": [2, 2]}, ["a number for each row", "[1 2]"]),
        ("generate_ids", {"token_ids": [[]], "prompt_lengths": [0]}, ["a token or more", "[0]"]),
        ("generate", {"prompts": ["a"], "temperature": -0.5}, ["temperature must be 0 or more", "-0.5"]),
        ("generate", {"prompts": ["a"], "temperature": np.nan}, ["temperature must be 0 or more", "nan"]),
        ("generate", {"prompts": ["a"], "temperature": np.inf}, ["temperature must be", "inf"]),
        ("generate", {"prompts": ["a"], "top_k": -1}, ["top_k must be 0 or more", "-1"]),
        ("generate", {"prompts": ["a"], "top_p": -0.1}, ["top_p must be from 0 to 1", "-0.1"]),
        ("generate", {"prompts": ["a"], "top_p": 1.5}, ["top_p must be from 0 to 1", "1.5"]),
        ("generate", {"prompts": ["a"], "top_p": np.nan}, ["top_p must be from 0 to 1", "nan"]),
        ("generate", {"prompts": ["a"], "max_new_tokens": -1}, ["max_new_tokens must be 0 or more", "-1"]),
        ("generate", {"prompts": [], "max_new_tokens": -1}, ["max_new_tokens must be 0 or more", "-1"]),
    ],
)
def test_errors(characters, signature, inputs, parts):
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        call(characters.loaded, signature, **inputs)
    assert all(part in error.value.message for part in parts), error.value.message


@needs_tensorflow
def test_weights_that_are_nan(characters, in_python):
    weights = [variable for variable in characters.loaded.variables if variable.dtype.is_floating]
    values = [weight.numpy() for weight in weights]
    try:
        for weight in weights:
            weight.assign(tf.fill(weight.shape, np.nan))
        for prompts in (["ab"], ["e", PROMPTS[-1]]):
            with pytest.raises(tf.errors.InvalidArgumentError, match="must be numbers. Received: NaN"):
                generate(characters.loaded, prompts, 3)
            assert generate(characters.loaded, prompts, 0) == prompts
        assert np.isnan(call(characters.loaded, "score", texts=["ab"])["log_likelihood"]).all()
    finally:
        for weight, value in zip(weights, values, strict=True):
            weight.assign(value)
    assert generate(characters.loaded, PROMPTS, 3) == in_python(3)


# Forms of the model


ROTARY = {"max_sequence_length": None, "position": "rotary", "head_dim": 4}
PAIRS = BytePairTokenizer([(97, 98)])
# Half precision: about ten roundings of 2**-8 or 2**-11 of logits up to 4, which a graph may leave out where it joins
# operations. Rows of int8 are rounded at borders that float32's own rounding moves.
FORMS = {
    "tied": ({**presets.NAMED_TENSOR, "max_sequence_length": 11, "vocabulary_size": 257}, 1e-5),
    "rolling": (
        {"position": "rotary", "window_size": 3, "num_heads": 4, "num_key_value_heads": 2, "head_dim": 4},
        1e-5,
    ),
    "bfloat16": ({**ROTARY, "dtype": "mixed_bfloat16"}, 0.1),
    "float16": ({**ROTARY, "dtype": "mixed_float16"}, 0.01),
    "int8": (ROTARY, 1e-3),
}


@pytest.fixture(scope="module")
def forms(tmp_path_factory):
    made = {}

    def get(name):
        if name not in made:
            model = small(**{**FORMS[name][0], "num_layers": 1})
            if name == "int8":
                model.quantize("int8")
            # A tokenizer without a graph form: the same signatures as without a tokenizer.
            made[name] = Served(TextGenerator(model, PAIRS) if name == "tied" else model, tmp_path_factory.mktemp(name))
        return made[name]

    return get


@needs_tensorflow
@pytest.mark.parametrize("name", FORMS)
def test_forms(forms, name):
    served, tolerance = forms(name), FORMS[name][1]
    model = served.generator.model if name == "tied" else served.generator
    assert set(served.loaded.signatures) == {"serving_default", "generate_ids"}
    assert (model.decoding_limit is None) == (name != "tied")
    for shape in ((1, 1), (7, 9)):
        ids = random_ids(*shape, low=0)
        logits = call(served.loaded, "serving_default", token_ids=ids)["logits"]
        assert logits.dtype == "float32"
        assert_close(logits, to_numpy(model(ids)).astype("float32"), tolerance)
    prompts = [random_ids(length).tolist() for length in (9, 1, 16)]
    rows = generate_ids(served.loaded, prompts, 6, padding=-5)
    assert [row[: len(prompt)] for row, prompt in zip(rows, prompts, strict=True)] == prompts
    assert [len(row) for row in rows] == [15, 7, 22]
    check_greedy(model, rows, [9, 1, 16], tolerance)


def check_greedy(model, rows, lengths, tolerance=1e-5):
    """Each new token has the largest logit, up to the tolerance, that plain calls of the model give; in float32 the
    margin to the next one is above it, so that it is the only one."""
    for row, length in zip(rows, lengths, strict=True):
        logits = uncached_logits(model, np.array(row[:-1]))[length - 1 :]
        chosen = np.take_along_axis(logits, np.array(row[length:])[:, None], axis=1)[:, 0]
        assert (logits.max(-1) - chosen).max() <= 2 * tolerance
        if tolerance == 1e-5:
            assert np.diff(np.sort(logits, axis=-1)[:, -2:]).min() > 2 * tolerance
    assert len({token for row, length in zip(rows, lengths, strict=True) for token in row[length:]}) > 2


@needs_tensorflow
def test_a_layer_of_another_model(forms):
    served = forms("rolling")
    layer = keras.layers.TFSMLayer(served.path, call_endpoint="serving_default")
    inputs = keras.Input((None,), dtype="int32")
    model = keras.Model(inputs, 2.0 * layer(inputs)["logits"])
    ids = random_ids(7, 5)
    assert_close(to_numpy(model(ids)), 2.0 * to_numpy(served.generator(ids)), 1e-5)
    assert_close(model.predict(ids, verbose=0), 2.0 * to_numpy(served.generator(ids)), 1e-5)


def test_jax_exports_logits(characters):
    names = {"serving_default", *(["generate_ids", "generate", "score"] if BACKEND == "tensorflow" else [])}
    assert set(characters.loaded.signatures) == names


# Directories; here nothing is traced


@pytest.fixture
def writes(monkeypatch):
    def write_out(self, path, *args, **kwargs):
        os.makedirs(path)
        pathlib.Path(path, "saved_model.pb").write_text("a model")

    monkeypatch.setattr(type(keras.export.ExportArchive()), "write_out", write_out)


@pytest.fixture(scope="module")
def little():
    return LittleTransformer(vocabulary_size=CHAR.vocabulary_size, num_layers=1, num_heads=1, hidden_dim=4)


def test_versions(little, writes, tmp_path, monkeypatch):
    folder = tmp_path / "new" / "served"
    assert export_saved_model(little, folder) == str(folder / "1")
    assert export_saved_model(little, str(folder)) == str(folder / "2")
    (folder / "7").mkdir()
    for name in ("notes", "9b", "-11", ".12", "²"):
        (folder / name).mkdir()
    assert export_saved_model(TextGenerator(little, CHAR), folder) == str(folder / "8")
    names = {path.name for path in folder.iterdir()}
    assert names == {"1", "2", "7", "8", "notes", "9b", "-11", ".12", "²"}
    assert all((folder / number / "saved_model.pb").is_file() for number in "128")
    monkeypatch.chdir(tmp_path)
    assert export_saved_model(little, "here") == os.path.join("here", "1")
    # A server that runs as another user may read it.
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "here" / "1").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_two_exports_at_a_time(little, writes, tmp_path, monkeypatch):
    first, second = export_saved_model(little, tmp_path), export_saved_model(little, tmp_path)
    listed = os.listdir(tmp_path)
    monkeypatch.setattr(os, "listdir", lambda path: [])
    assert [first, second] == [str(tmp_path / "1"), str(tmp_path / "2")] and len(listed) == 2
    # Another process took these numbers after this one had looked.
    assert export_saved_model(little, tmp_path) == str(tmp_path / "3")


@pytest.mark.parametrize("error", [OSError("no space left"), KeyboardInterrupt()])
def test_a_crash_leaves_no_version(little, writes, tmp_path, monkeypatch, error):
    export_saved_model(little, tmp_path)
    archive = type(keras.export.ExportArchive())
    write_out = archive.write_out

    def write_half(self, path, *args, **kwargs):
        write_out(self, path)
        assert [name for name in os.listdir(tmp_path) if name[0] != "."] == ["1"]
        raise error

    monkeypatch.setattr(archive, "write_out", write_half)
    with pytest.raises(type(error)):
        export_saved_model(little, tmp_path)
    assert os.listdir(tmp_path) == ["1"]


@pytest.mark.parametrize("model", [None, "runs/little", CHAR, TextGenerator, keras.Sequential([keras.layers.Dense(3)])])
def test_what_is_no_language_model(model, tmp_path):
    with pytest.raises(TypeError, match=f"a model of images of keras_lt. Received: {type(model).__name__}"):
        export_saved_model(model, tmp_path / "served")
    assert not (tmp_path / "served").exists()


def test_other_backends(little, tmp_path, monkeypatch):
    monkeypatch.setattr(keras.config, "backend", lambda: "torch")
    with pytest.raises(ValueError, match="KERAS_BACKEND=tensorflow. Received: the backend torch"):
        export_saved_model(little, tmp_path / "served")
    assert not (tmp_path / "served").exists()


def test_without_tensorflow(little, tmp_path, monkeypatch):
    monkeypatch.setitem(importlib.import_module("sys").modules, "tensorflow", None)
    with pytest.raises(ImportError, match="pip install tensorflow"):
        export_saved_model(little, tmp_path / "served")
    assert not (tmp_path / "served").exists()


# Several threads


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("stress_saved_model", ROOT / "tools" / "stress_saved_model.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_tensorflow
def test_threads(characters, tool, monkeypatch, capsys):
    monkeypatch.setattr(tf.saved_model, "load", {"served/1": characters.loaded}.get)
    prompts = [part for prompt in PROMPTS for part in ("--prompt", prompt)]
    command = ["--model", "served/1", "--seconds", "3", "--max-new-tokens", "15", *prompts]
    assert tool.main(tool.parse_arguments(command)) == 0
    *table, line = capsys.readouterr().out.splitlines()
    result = json.loads(line)
    assert result["threads"] == 8 and result["seconds"] >= 3 and result["calls"] > 50
    assert result["different_answers"] == result["failed_calls"] == 0
    assert len(table) == len(result) - 1 and all(line.split()[-1] for line in table)


def test_the_tool_finds_what_differs(tool, monkeypatch, capsys):
    numbers, lock = itertools.count(), threading.Lock()

    def generate(job):
        time.sleep(0.001)
        with lock:
            number = next(numbers)
        if number in (51, 52):
            raise ValueError("no answer")
        return [f"{job}" if number < 53 else "another"]

    result = tool.stress(generate, tool.make_jobs(["a", "b"]), num_threads=3, seconds=0.3)
    assert next(numbers) == result["calls"] + len(tool.make_jobs(["a", "b"]))
    assert result["different_answers"] == next(numbers) - 54 > 1
    assert result["failed_calls"] == 2 and result["first_error"] == "ValueError: no answer"
    monkeypatch.setattr(tool, "stress", lambda *args: result)
    monkeypatch.setattr(tool, "load_generate", lambda *args: generate)
    assert tool.main(tool.parse_arguments(["--model", "served/1"])) == 1
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["failed_calls"] == 2
    result["failed_calls"] = result["different_answers"] = 0
    assert tool.main(tool.parse_arguments(["--model", "served/1"])) == 0
