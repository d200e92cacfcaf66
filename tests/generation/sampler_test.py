"""What a Sampler holds, what it refuses, and that it comes back from a file; what it draws is in `sampling_test.py`."""

import json

import keras
import numpy as np
import pytest

from generation_testing import TableModel, greedy
from keras_lt.generation import BeamSearch, Sampler

SETTINGS = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.03, "repetition_penalty": 1.2}
WRONG = [
    *[("temperature", value) for value in (-0.1, -1, float("nan"), float("inf"), "1", None, True, [1.0])],
    *[("top_k", value) for value in (-1, 2.0, 0.5, "3", None, True)],
    *[("top_p", value) for value in (-0.1, 1.1, float("nan"), "0.9", None, False)],
    *[("min_p", value) for value in (-0.1, 1.1, float("nan"), "0.1", None, True)],
    *[("repetition_penalty", value) for value in (0, 0.0, -1.0, float("nan"), float("inf"), "1", None, True)],
]


def test_defaults_draw_from_the_distribution_as_it_is():
    off = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0}
    assert Sampler().get_config() == off


def test_config():
    sampler = Sampler(**SETTINGS)
    assert sampler.get_config() == SETTINGS
    again = Sampler.from_config(json.loads(json.dumps(sampler.get_config())))
    assert type(again) is Sampler and again == sampler


def test_saving():
    sampler = Sampler(**SETTINGS)
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(sampler)))
    assert saved["registered_name"] == "keras_lt>Sampler"
    assert keras.saving.deserialize_keras_object(saved) == sampler


def test_repr_is_the_call():
    sampler = Sampler(**SETTINGS)
    expected = "Sampler(temperature=0.7, top_k=5, top_p=0.9, min_p=0.03, repetition_penalty=1.2)"
    assert repr(sampler) == expected
    assert eval(repr(sampler)) == sampler


@pytest.mark.parametrize("name", SETTINGS)
def test_equality_and_hash(name):
    sampler, same = Sampler(**SETTINGS), Sampler(**SETTINGS)
    other = Sampler(**{**SETTINGS, name: getattr(Sampler(), name)})
    assert sampler == same and hash(sampler) == hash(same)
    assert sampler != other and len({sampler, same, other}) == 2
    assert sampler != SETTINGS and Sampler() != BeamSearch(2) and sampler != "greedy"


@pytest.mark.parametrize(("name", "value"), WRONG, ids=str)
def test_wrong_settings(name, value):
    with pytest.raises(ValueError, match=f"`{name}`.*Received: .*") as error:
        Sampler(**{name: value})
    assert repr(value).removesuffix(".0") in str(error.value)


@pytest.mark.parametrize("convert", [np.float32, np.float64, int])
def test_numbers_of_any_kind(convert):
    sampler = Sampler(convert(1), np.int64(3), convert(1), convert(0), convert(2))
    assert sampler == Sampler(1.0, 3, 1.0, 0.0, 2.0)


@pytest.mark.parametrize("value", ["Greedy", "beam", None, 3, Sampler, {"temperature": 0.0}])
def test_what_is_no_sampler(value):
    with pytest.raises(ValueError, match="`sampler` must be") as error:
        TableModel(5).generate([[1]], 2, sampler=value)
    assert repr(value) in str(error.value)


def test_limits_in_generate():
    """`generate` reads the settings of each sampler: those that leave one token are greedy, a penalty is not."""
    model = TableModel(5)
    prompts = [[1, 2], [4, 0, 3]]
    expected = [greedy(model, prompt, 7) for prompt in prompts]
    for settings in ({"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}, {"min_p": 1.0}, {"temperature": 1e-9}):
        rows = model.generate(prompts, 7, sampler=Sampler(**settings), seed=3)
        assert [row.tolist() for row in rows] == expected
    rows = model.generate(prompts, 3, sampler=Sampler(temperature=0.0, repetition_penalty=1e6))
    for row, prompt in zip(rows, prompts, strict=True):
        # So large a penalty leaves tokens that were there a logit of 0 or far below.
        tokens = list(prompt)
        for token in row[len(prompt) :]:
            logits = model.next_logits(tokens)
            logits[tokens] = np.where(logits[tokens] > 0, logits[tokens] / 1e6, logits[tokens] * 1e6)
            assert token == np.argmax(logits)
            tokens.append(int(token))
