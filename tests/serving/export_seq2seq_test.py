"""What a SavedModel of a model that reads a source gives is what Python gives, and what plain calls give."""

import functools
import json

import numpy as np
import pytest

from keras_lt import TextGenerator
from keras_lt.models import RecurrentSeq2Seq, TransformerEncoder, TransformerSeq2Seq
from keras_lt.serving import export_saved_model
from model_testing import log_softmax, random_ids, recurrent, small, uncached_logits
from seq2seq_testing import LETTERS, REVERSING
from testing import BACKEND, assert_close, fresh_process, needs_tensorflow, to_numpy

tf = pytest.importorskip("tensorflow")

LIMIT = 13
SETTINGS = {"max_new_tokens": 9, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0}
SAMPLED = {"temperature": 1.5, "top_k": 7, "top_p": 0.95, "seed": 5}
# 1 token, some, as many as the context
TEXTS = ["e", "abcdabcd", "hgfedcbahgfed"]
SIZE, START, END = REVERSING.values()


def call(served, signature, **inputs):
    """A signature's outputs as NumPy arrays; settings that are not given are off."""
    function = served.signatures[signature]
    specs = function.structured_input_signature[1]
    inputs = {**{name: value for name, value in SETTINGS.items() if name in specs}, **inputs}
    tensors = {name: tf.constant(value, specs[name].dtype) for name, value in inputs.items()}
    return {name: output.numpy() for name, output in function(**tensors).items()}


def rows(texts, behind=0):
    """Sources side by side, with something behind them, and their lengths."""
    lengths = [len(text) for text in texts]
    source = np.full((len(texts), max(lengths, default=0)), behind, "int32")
    for row, text in zip(source, texts, strict=True):
        row[: len(text)] = LETTERS.encode(text)
    return {"source": source, "source_lengths": lengths}


def texts_of(served, texts, **settings):
    return [text.decode("utf-8") for text in call(served, "generate", prompts=texts, **settings)["texts"]]


class Served:
    """A generator, the directory that holds its SavedModel, and what TensorFlow loads from there."""

    def __init__(self, model, folder):
        self.model, self.generator = model, TextGenerator(model, LETTERS)
        self.path = export_saved_model(self.generator, folder)

    @functools.cached_property
    def loaded(self):
        return tf.saved_model.load(self.path)


def transformer():
    return small(TransformerSeq2Seq, num_layers=1, max_sequence_length=LIMIT, mask_zero=True, **REVERSING)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return Served(transformer(), tmp_path_factory.mktemp("transformer"))


@pytest.fixture(scope="module")
def recurring(tmp_path_factory):
    """With the cell of two states."""
    model = recurrent("lstm", scale=1.0, model_class=RecurrentSeq2Seq, num_layers=1, **REVERSING)
    return Served(model, tmp_path_factory.mktemp("recurrent"))


# Signatures


@needs_tensorflow
def test_signatures(served):
    settings = {name: ([], "float32" if name in ("temperature", "top_p") else "int32") for name in SETTINGS}
    ids, lengths, texts = ([None, None], "int32"), ([None], "int32"), ([None], "string")
    found = {}
    for name, function in served.loaded.signatures.items():
        inputs, outputs = function.structured_input_signature[1], function.structured_outputs
        found[name] = [{k: (v.shape.as_list(), v.dtype.name) for k, v in side.items()} for side in (inputs, outputs)]
    read = {"source": ids, "source_lengths": lengths}
    assert found == {
        "serving_default": [{**read, "target": ids}, {"logits": ([None, None, SIZE], "float32")}],
        "generate_ids": [{**read, **settings}, {"token_ids": ids, "lengths": lengths}],
        "generate": [{"prompts": texts, **settings}, {"texts": texts}],
        "score": [{"texts": texts, "targets": texts}, {"log_likelihood": ([None], "float32"), "token_counts": lengths}],
    }


@needs_tensorflow
def test_an_encoder_gives_logits_alone(tmp_path):
    model = small(TransformerEncoder, num_layers=1)
    loaded = tf.saved_model.load(export_saved_model(model, tmp_path))
    assert set(loaded.signatures) == {"serving_default"}
    for shape in ((1, 1), (3, 7)):
        ids = random_ids(*shape)
        assert_close(call(loaded, "serving_default", token_ids=ids)["logits"], to_numpy(model(ids)), 1e-5)


def test_logits(served, recurring):
    """Of sources of unequal lengths what each gives alone, whatever stands behind it; on JAX, too."""
    for one in (served, recurring):
        target = random_ids(len(TEXTS), 4, vocabulary_size=SIZE)
        inputs = rows(TEXTS, behind=10**6)
        logits = call(one.loaded, "serving_default", **inputs, target=target)["logits"]
        assert logits.dtype == "float32"
        for text, row, found in zip(TEXTS, target, logits, strict=True):
            alone = {"source": LETTERS.encode(text)[None], "target": row[None]}
            assert_close(found, to_numpy(one.model(alone))[0], 1e-5)


@needs_tensorflow
@pytest.mark.parametrize("length", [0, 3])
def test_no_rows(served, recurring, length):
    for one in (served, recurring):
        empty = {"source": np.zeros((0, length)), "source_lengths": []}
        assert call(one.loaded, "generate_ids", **empty)["token_ids"].shape == (0, 9)
        logits = call(one.loaded, "serving_default", **empty, target=np.zeros((0, 4)))["logits"]
        assert logits.shape == (0, 4, SIZE)


# Answers


def check_greedy(one, texts, answers):
    """Independent of Python's decode loop: plain calls of the model, without a cache."""
    for text, answer in zip(texts, answers, strict=True):
        row = np.concatenate([[START], answer]).astype("int32")
        expected = log_softmax(uncached_logits(one.model, row, LETTERS.encode(text)))
        likeliest = np.sort(expected, axis=-1)
        assert (likeliest[:, -1] - likeliest[:, -2]).min() > 1e-4, "the choice hangs on rounding"
        np.testing.assert_array_equal(expected.argmax(-1)[: len(answer)], answer)
        assert len(answer) == SETTINGS["max_new_tokens"] or expected[-1].argmax() == END


@needs_tensorflow
@pytest.mark.parametrize("behind", [0, -5, 10**6])
def test_generate_ids(served, recurring, behind):
    for one in (served, recurring):
        outputs = call(one.loaded, "generate_ids", **rows(TEXTS, behind))
        assert outputs["token_ids"].shape == (3, 9)
        answers = [row[:length] for row, length in zip(outputs["token_ids"], outputs["lengths"], strict=True)]
        for row, length in zip(outputs["token_ids"], outputs["lengths"], strict=True):
            assert not row[length:].any()
        check_greedy(one, TEXTS, answers)
        turned = call(one.loaded, "generate_ids", **rows(TEXTS[::-1], behind))
        np.testing.assert_array_equal(turned["token_ids"][::-1], outputs["token_ids"])


@needs_tensorflow
def test_texts_are_those_of_python(served, recurring):
    """Greedy, sampled with a seed for all rows, and past the context, where the window slides."""
    for one in (served, recurring):
        for settings in ({}, SAMPLED):
            # In Python as many as there is room for in one bucket, of which fewer are the first.
            longest = one.generator.generate(TEXTS, 15, **settings)
            for number in (0, 3, 15):
                found = texts_of(one.loaded, TEXTS, max_new_tokens=number, **settings)
                assert found == [text[:number] for text in longest]
        assert longest != one.generator.generate(TEXTS, 15)
        assert texts_of(one.loaded, TEXTS[1:2]) == [texts_of(one.loaded, TEXTS)[1]]
        assert texts_of(one.loaded, []) == []


@needs_tensorflow
def test_scores(served, recurring):
    """Of targets of unequal lengths with their ends, one past the context, one empty."""
    targets = ["abcdefghabcdefgh", "", "ha"]
    for one in (served, recurring):
        outputs = call(one.loaded, "score", texts=TEXTS, targets=targets)
        for number, (text, target) in enumerate(zip(TEXTS, targets, strict=True)):
            row = np.array([START, *LETTERS.encode(target), END], "int32")
            logits = log_softmax(uncached_logits(one.model, row[:-1], LETTERS.encode(text)))
            assert_close(outputs["log_likelihood"][number], logits[range(len(row) - 1), row[1:]].sum(), 1e-5)
        assert outputs["token_counts"].tolist() == [17, 1, 3]
        in_python = one.generator.score(TEXTS, targets)
        assert_close(outputs["log_likelihood"], in_python["log_likelihood"], 1e-5)
        np.testing.assert_array_equal(outputs["token_counts"], in_python["token_counts"])
        assert call(one.loaded, "score", texts=[], targets=[])["token_counts"].shape == (0,)


@needs_tensorflow
def test_a_process_without_keras(served):
    output = fresh_process(
        """
        import json, sys

        sys.modules["keras"] = sys.modules["keras_lt"] = None
        import tensorflow as tf

        generate = tf.saved_model.load(sys.argv[1]).signatures["generate"]
        specs = generate.structured_input_signature[1]
        inputs = {name: tf.constant(value, specs[name].dtype) for name, value in json.loads(sys.argv[2]).items()}
        print(json.dumps([text.decode() for text in generate(**inputs)["texts"].numpy()]))
        """,
        served.path,
        json.dumps({"prompts": TEXTS, **SETTINGS, **SAMPLED}),
    )
    assert json.loads(output.splitlines()[-1]) == texts_of(served.loaded, TEXTS, **SAMPLED)


# Errors

GOOD = {"source": [[3, 4, 5], [6, 7, 8]], "source_lengths": [3, 2]}
ERRORS = [
    ("generate_ids", {**GOOD, "source_lengths": [3, 0]}, "Sources must hold a token or more, and source_lengths be"),
    ("generate_ids", {**GOOD, "source_lengths": [4, 2]}, "source_lengths be at most T"),
    ("generate_ids", {**GOOD, "source_lengths": [3]}, "source_lengths must have a number for each row of source"),
    ("generate_ids", {**GOOD, "source": [[3, 4, 5], [6, SIZE, 8]]}, f"Ids must be from 0 to {SIZE - 1}"),
    ("generate_ids", {**GOOD, "source": [[3, -1, 5], [6, 7, 8]]}, f"Ids must be from 0 to {SIZE - 1}"),
    ("generate_ids", {**GOOD, "max_new_tokens": -1}, "max_new_tokens must be 0 or more"),
    ("generate_ids", {**GOOD, "temperature": -1.0}, "temperature must be 0 or more"),
    ("generate_ids", {**GOOD, "top_p": 1.5}, "top_p must be from 0 to 1"),
    ("generate_ids", {"source": [[3] * 14], "source_lengths": [14]}, f"A source may have at most {LIMIT} tokens"),
    ("generate", {"prompts": ["a", ""]}, "Prompts must not be empty"),
    ("generate", {"prompts": ["a", "xyz"]}, "xyz|x"),
    ("generate", {"prompts": ["a" * 14]}, f"A source may have at most {LIMIT} tokens"),
    ("score", {"texts": ["a", "b"], "targets": ["a"]}, "There must be a target for each text"),
    ("score", {"texts": ["a", ""], "targets": ["a", "b"]}, "Prompts must not be empty"),
    ("score", {"texts": ["a" * 14], "targets": ["b"]}, f"A source may have at most {LIMIT} tokens"),
]


@needs_tensorflow
@pytest.mark.parametrize(("signature", "inputs", "message"), ERRORS)
def test_errors(served, signature, inputs, message):
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        call(served.loaded, signature, **inputs)


@pytest.mark.skipif(BACKEND != "jax", reason="what JAX leaves out")
def test_jax_exports_logits_alone(served):
    assert set(served.loaded.signatures) == {"serving_default"}
