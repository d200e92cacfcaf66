"""Beam search against exhaustive search and against a beam search in plain Python, on a vocabulary of five symbols."""

import itertools
import json

import keras
import numpy as np
import pytest

from generation_testing import TableModel, greedy, log_softmax
from keras_lt.generation import BeamSearch, Sampler

V = 5
PROMPTS = [[1], [3, 0, 2, 2, 4], [4, 4, 1]]
PENALTIES = [0.0, 0.7, 1.0, 2.5]
STOPS = [None, 2, [0, 3]]


def stop_set(stop_token_ids):
    return set(np.atleast_1d([] if stop_token_ids is None else stop_token_ids).tolist())


def log_prob(model, prompt, new):
    """Of new tokens after a prompt."""
    tokens, total = list(prompt), 0.0
    for token in new:
        total += log_softmax(model.next_logits(tokens))[token]
        tokens.append(token)
    return total


def exhaustive(model, prompt, max_new_tokens, stops, length_penalty):
    """Every continuation, best first: pairs of score and new tokens, a stop token included."""
    found = []
    for count in range(1, max_new_tokens + 1):
        for new in itertools.product(range(V), repeat=count):
            if stops & set(new[:-1]) or (count < max_new_tokens and new[-1] not in stops):
                continue
            found.append((log_prob(model, prompt, new) / count**length_penalty, new))
    return sorted(found, reverse=True)


def beam_search(model, prompt, max_new_tokens, stops, length_penalty, num_beams):
    """The docstring's: the `num_beams` best continuations of `log P / n^length_penalty` at every step, best first."""
    beams = [(0.0, ())]
    for _ in range(max_new_tokens):
        candidates = []
        for score, new in beams:
            if new and new[-1] in stops:
                candidates.append((score, new))
                continue
            for token in range(V):
                longer = (*new, token)
                candidates.append((log_prob(model, prompt, longer) / len(longer) ** length_penalty, longer))
        candidates.sort(reverse=True)
        scores = [score for score, _ in candidates]
        assert np.diff(scores[: num_beams + 1]).max() < -1e-5, "the choice must not hang on rounding"
        beams = candidates[:num_beams]
    return beams


def without_stop(new, stops):
    return new[:-1] if new and new[-1] in stops else new


def generated(model, num_beams, max_new_tokens, stop_token_ids, length_penalty, num_samples=1, prompts=PROMPTS):
    """The new tokens of each prompt's samples."""
    rows = model.generate(
        prompts,
        max_new_tokens,
        sampler=BeamSearch(num_beams, length_penalty=length_penalty),
        stop_token_ids=stop_token_ids,
        num_samples=num_samples,
    )
    assert len(rows) == len(prompts) * num_samples and all(row.dtype == "int32" for row in rows)
    groups = [rows[start : start + num_samples] for start in range(0, len(rows), num_samples)]
    for prompt, group in zip(prompts, groups, strict=True):
        assert all(row[: len(prompt)].tolist() == prompt for row in group)
    return [[tuple(row[len(p) :].tolist()) for row in group] for p, group in zip(prompts, groups, strict=True)]


@pytest.fixture(scope="module")
def model():
    return TableModel(V, seed=19)


@pytest.mark.parametrize("stop_token_ids", STOPS, ids=str)
@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_with_enough_beams_it_is_exhaustive(model, length_penalty, stop_token_ids):
    stops = stop_set(stop_token_ids)
    samples = generated(model, 127, 3, stop_token_ids, length_penalty, num_samples=11)
    for prompt, found in zip(PROMPTS, samples, strict=True):
        best = exhaustive(model, prompt, 3, stops, length_penalty)[:12]
        assert np.diff([score for score, _ in best]).max() < -1e-5, "the choice must not hang on rounding"
        assert found == [without_stop(new, stops) for _, new in best[:11]]


def test_the_penalty_decides(model):
    """About the tests: what is best by one penalty is not by another."""
    best = [exhaustive(model, PROMPTS[2], 3, {2}, length_penalty)[0][1] for length_penalty in PENALTIES]
    assert len(set(best)) == 3


@pytest.mark.parametrize("stop_token_ids", STOPS, ids=str)
@pytest.mark.parametrize("length_penalty", PENALTIES)
def test_few_beams_equal_plain_python(model, length_penalty, stop_token_ids):
    stops = stop_set(stop_token_ids)
    samples = generated(model, 3, 7, stop_token_ids, length_penalty, num_samples=2)
    for prompt, found in zip(PROMPTS, samples, strict=True):
        beams = beam_search(model, prompt, 7, stops, length_penalty, 3)
        assert found == [without_stop(new, stops) for _, new in beams[:2]]


def test_past_the_context(without_xla):
    """One prompt slides at once, one after some steps in the cache; the caches follow the beams."""
    model = TableModel(V, max_sequence_length=6, seed=2)
    for stop_token_ids in (None, 1):
        stops = stop_set(stop_token_ids)
        samples = generated(model, 3, 7, stop_token_ids, 1.0, prompts=[[1], [3, 0, 2, 2, 4, 1, 0, 3], [4, 4, 1]])
        for prompt, found in zip([[1], [3, 0, 2, 2, 4, 1, 0, 3], [4, 4, 1]], samples, strict=True):
            assert found == [without_stop(beam_search(model, prompt, 7, stops, 1.0, 3)[0][1], stops)]


def test_one_beam_is_greedy(without_xla, model):
    for stop_token_ids, length_penalty in itertools.product(STOPS, [0.0, 1.0]):
        stops = stop_set(stop_token_ids)
        found = generated(model, 1, 7, stop_token_ids, length_penalty)
        assert found == [[tuple(greedy(model, prompt, 7, stops)[len(prompt) :])] for prompt in PROMPTS]


def test_three_beams_find_more_than_one(model):
    """About the tests: where greedy were right, beams would show nothing."""
    found, narrow = generated(model, 3, 7, None, 1.0), generated(model, 1, 7, None, 1.0)
    gains = [
        log_prob(model, prompt, one) - log_prob(model, prompt, other)
        for prompt, [one], [other] in zip(PROMPTS, found, narrow, strict=True)
    ]
    assert max(gains) > 0.1


def test_alone_and_in_another_order(without_xla, model):
    together = generated(model, 3, 7, 2, 1.0)
    assert generated(model, 3, 7, 2, 1.0, prompts=PROMPTS[::-1]) == together[::-1]
    assert [generated(model, 3, 7, 2, 1.0, prompts=[prompt])[0] for prompt in PROMPTS] == together


def test_log_probs_follow_the_beams(without_xla, model):
    rows, log_probs = model.generate(PROMPTS, 7, sampler=BeamSearch(3), return_log_probs=2)
    for prompt, row, values in zip(PROMPTS, rows, log_probs, strict=True):
        expected = np.stack([log_softmax(model.next_logits(row[:end])) for end in range(len(prompt), len(row))])
        new = row[len(prompt) :]
        np.testing.assert_allclose(values["chosen"], expected[np.arange(7), new], rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(values["top"], -np.sort(-expected)[:, :2], rtol=1e-6, atol=1e-6)


def test_config():
    search = BeamSearch(3, length_penalty=0.6)
    assert search.get_config() == {"num_beams": 3, "length_penalty": 0.6}
    assert BeamSearch(3).length_penalty == 1.0
    again = BeamSearch.from_config(json.loads(json.dumps(search.get_config())))
    assert type(again) is BeamSearch and again == search and hash(again) == hash(search)
    assert repr(search) == "BeamSearch(num_beams=3, length_penalty=0.6)" and eval(repr(search)) == search
    assert search not in (BeamSearch(2, length_penalty=0.6), BeamSearch(3), Sampler(), 3)
    saved = json.loads(json.dumps(keras.saving.serialize_keras_object(search)))
    assert saved["registered_name"] == "keras_lt>BeamSearch"
    assert keras.saving.deserialize_keras_object(saved) == search


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("num_beams", value) for value in (0, -1, 2.0, "3", None, True)],
        *[("length_penalty", value) for value in (-0.1, float("nan"), float("inf"), "1", None, True)],
    ],
    ids=str,
)
def test_wrong_settings(name, value):
    with pytest.raises(ValueError, match=f"`{name}` must be") as error:
        BeamSearch(**{"num_beams": 2, name: value})
    assert f"{name}={value!r}" in str(error.value)


def test_more_samples_than_beams(model):
    with pytest.raises(ValueError, match="num_samples=3, num_beams=2"):
        model.generate(PROMPTS, 7, sampler=BeamSearch(2), num_samples=3)
