"""Sampling against probabilities written from the definition, and its random numbers against MurmurHash3."""

import functools
import itertools

import keras
import numpy as np
import pytest

from generation_testing import assert_distributed, murmur_fold_in
from keras_lt.generation import Sampler
from keras_lt.generation.sampling import fold_in, penalize_repetition, sample, uniform
from testing import BACKEND, MODES, assert_close, compiled, run, to_numpy

# On JAX eager mode runs what jit runs, with each operation compiled alone, again and again where there are branches.
LEAN_MODES = [mode for mode in MODES if (BACKEND, mode) != ("jax", "eager")]

B, S, V = 100_000, 5, 7
LOGITS = np.array([0.7, -0.4, 1.9, 0.1, 1.6, -1.3, 0.4])
HISTORY = [4, 5, 4]
OFF = {"repetition_penalty": 1.0, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


# The definition in NumPy


def softmax(logits):
    weights = np.exp(logits - logits.max())
    return weights / weights.sum()


def keep(logits, tokens):
    return np.where(np.isin(np.arange(len(logits)), tokens), logits, -np.inf)


def by_rank(logits):
    return sorted(range(len(logits)), key=lambda token: (-logits[token], token))


def penalize(logits, penalty):
    seen = np.isin(np.arange(len(logits)), HISTORY)
    return np.where(seen, np.where(logits > 0, logits / penalty, logits * penalty), logits)


def keep_top_p(logits, top_p):
    probabilities, kept = softmax(logits), []
    for token in by_rank(logits):
        if not kept or top_p == 1 or probabilities[kept].sum() < top_p:
            kept.append(token)
    return keep(logits, kept)


STEPS = {
    "repetition_penalty": penalize,
    "temperature": lambda logits, temperature: logits / temperature,
    "top_k": lambda logits, top_k: keep(logits, by_rank(logits)[: top_k or len(logits)]),
    "top_p": keep_top_p,
    "min_p": lambda logits, min_p: np.where(softmax(logits) >= min_p * softmax(logits).max(), logits, -np.inf),
}


def probabilities_of(logits, order=tuple(STEPS), **settings):
    logits = np.asarray(logits, "float64")
    for name in order:
        logits = STEPS[name](logits, {**OFF, **settings}[name])
    return softmax(logits)


# Draws


@functools.cache
def sample_in(mode):
    """`sample` compiled once, for all settings; row `b` has the key of the seed 11 and the stream `b`."""

    def function(logits, settings):
        logits = keras.ops.broadcast_to(logits, (B, logits.shape[-1]))
        token_ids = np.tile(np.array([*HISTORY, 0, 1], "int32"), (B, 1))
        lengths = np.full(B, len(HISTORY), "int32")
        keys = murmur_fold_in(11, np.arange(B))
        return sample(logits, *map(keras.ops.convert_to_tensor, (token_ids, lengths, keys)), settings)

    example = (np.zeros(V, "float32"), Sampler().settings())
    return compiled(mode, function, example)


def draw(logits=LOGITS, dtype="float32", mode=MODES[-1], **settings):
    values = keras.tree.flatten(Sampler(**settings).settings())
    arrays = [keras.ops.cast(logits, dtype), *map(keras.ops.convert_to_tensor, values)]
    return to_numpy(sample_in(mode)(arrays))


def counts_of(ids, size=V):
    assert ids.dtype == "int32" and ids.shape == (B,)
    return np.bincount(ids, minlength=size)


# The random numbers


@pytest.mark.parametrize("mode", MODES)
def test_hash_equals_murmur(mode):
    extremes = [0, 1, -1, 2**31 - 1, -(2**31), 0x61C88647]
    keys = np.array([*extremes, *np.random.default_rng(0).integers(-(2**31), 2**31, 11)], "int32")
    numbers = np.array([*extremes, 2, 3, 1000], "int32")[:, None]
    hashes, values = run(mode, lambda *args: (fold_in(*args), uniform(*args)), keys, numbers)
    expected = murmur_fold_in(keys, numbers)
    assert hashes.dtype == "int32" and values.dtype == "float32"
    np.testing.assert_array_equal(hashes, expected)
    np.testing.assert_array_equal(values, (expected.astype("uint32") >> np.uint32(8)) / 2**24)


@functools.cache
def grid():
    """The numbers 0 .. 96 of 1009 neighbouring keys, and of the streams 0 .. 1008 of a seed, as in the decoder."""

    def function(numbers, counters):
        return uniform(numbers, counters), uniform(fold_in(keras.ops.full_like(numbers, 3), numbers), counters)

    return run(MODES[-1], function, np.arange(1009, dtype="int32")[:, None], np.arange(97, dtype="int32"))


@pytest.mark.parametrize("kind", [0, 1], ids=["neighbouring keys", "streams"])
def test_numbers_are_uniform(kind):
    values = grid()[kind]
    assert values.shape == (1009, 97) and values.min() >= 0 and values.max() < 1
    assert_distributed(np.histogram(values, 256, (0, 1))[0], np.full(256, 1 / 256))
    for rows in (values, values.T):
        # Each key, each counter alone: the sum of 1009, of 97 chi-squares, close to a normal one.
        counts = np.array([np.bincount(row, minlength=8) for row in (rows * 8).astype(int)])
        expected, degrees = rows.shape[1] / 8, 7 * len(rows)
        assert abs(((counts - expected) ** 2 / expected).sum() - degrees) < 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("kind", [0, 1], ids=["neighbouring keys", "streams"])
def test_neighbours_have_nothing_in_common(kind):
    values = grid()[kind]
    for rows, columns in ((1, 0), (0, 1), (1, 1), (2, 0), (0, 2)):
        one = values[rows:, columns:].ravel()
        other = values[: len(values) - rows, : values.shape[1] - columns].ravel()
        # The standard deviation of the correlation of n independent pairs is 1 / sqrt(n).
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(len(one))
        together = (one * 13).astype(int) * 13 + (other * 13).astype(int)
        assert_distributed(np.bincount(together, minlength=169), np.full(169, 1 / 169))


# The distribution

SETTINGS = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 3},
    {"top_k": 6},
    {"top_p": 0.35},
    {"top_p": 0.93},
    {"min_p": 0.25},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.6},
]
# Settings at which two neighbours of the order do not commute; those that are not here always do.
IN_ORDER = {
    ("repetition_penalty", "top_k"): {"repetition_penalty": 2.9, "top_k": 2},
    ("repetition_penalty", "top_p"): {"repetition_penalty": 0.4, "top_p": 0.5},
    ("temperature", "top_p"): {"temperature": 1.8, "top_p": 0.6},
    ("temperature", "min_p"): {"temperature": 1.8, "min_p": 0.3},
    ("top_k", "top_p"): {"top_k": 3, "top_p": 0.7},
    ("top_p", "min_p"): {"top_p": 0.75, "min_p": 0.3},
}
EVERYTHING = {"repetition_penalty": 1.3, "temperature": 1.4, "top_k": 5, "top_p": 0.9, "min_p": 0.35}


@pytest.mark.parametrize(("pair", "settings"), IN_ORDER.items())
def test_the_settings_tell_orders_apart(pair, settings):
    """About the tests: what the chi-square tests below expect is not what another order gives."""
    turned = probabilities_of(LOGITS, order=pair[::-1], **settings)
    assert np.abs(probabilities_of(LOGITS, **settings) - turned).max() > 0.03


@pytest.mark.parametrize("settings", [*SETTINGS, *IN_ORDER.values(), EVERYTHING], ids=str)
def test_draws_have_the_probabilities_of_the_definition(settings):
    ids = draw(**settings)
    assert_distributed(counts_of(ids), probabilities_of(LOGITS, **settings))
    for mode in MODES[:-1] if settings in ({}, EVERYTHING) else []:
        # A number within rounding, 1e-7, of the border of two tokens may fall on either side: 0.1 of 100,000 do.
        assert (draw(mode=mode, **settings) != ids).sum() <= 2


@pytest.mark.parametrize("settings", [{}, EVERYTHING], ids=str)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_probabilities_of_low_precision_logits_are_float32(settings, dtype):
    rounded = to_numpy(keras.ops.cast(keras.ops.cast(LOGITS, dtype), "float32"))
    ids = draw(dtype=dtype, **settings)
    assert_distributed(counts_of(ids), probabilities_of(rounded, **settings))
    np.testing.assert_array_equal(ids, draw(rounded, **settings))


@pytest.mark.parametrize("settings", [{}, {"top_k": 4}, {"top_p": 0.9}, EVERYTHING], ids=str)
def test_tokens_at_minus_infinity_never_come(settings):
    logits = np.where(np.isin(np.arange(V), [2, 3]), -np.inf, LOGITS)
    for mode in LEAN_MODES:
        assert_distributed(counts_of(draw(logits, mode=mode, **settings)), probabilities_of(logits, **settings))


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_p": 0.0}, {"temperature": 0.0}], ids=str)
def test_a_single_token_that_is_not_at_minus_infinity_comes(settings):
    logits = np.where(np.arange(V) == 5, -3e38, -np.inf)
    assert (draw(logits, **settings) == 5).all()


@pytest.mark.parametrize("settings", [{}, {"top_k": 5}, {"top_p": 0.999}], ids=str)
def test_extreme_temperatures(settings):
    assert_distributed(
        counts_of(draw(temperature=1e30, **settings)), probabilities_of(LOGITS, temperature=1e30, **settings)
    )
    for temperature in (1e-3, 1e-12, 1e-30):
        assert (draw(temperature=temperature, **settings) == LOGITS.argmax()).all()
    logits = np.where(np.arange(V) == LOGITS.argmax(), -np.inf, 1e30 * LOGITS)
    assert (draw(logits, temperature=1e-30, **settings) == 4).all()


# Limits that are off, and limits that leave one token

TIED = np.array([0.3, 1.7, -0.2, 1.7, 1.1, 1.7, 0.2])


ONE_LEFT = [{"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.0}]
# PyTorch's `topk` gives equal numbers in any order.
ONE_LEFT_OF_TIES = [
    pytest.param(settings, marks=pytest.mark.xfail(BACKEND == "torch" and "temperature" not in settings, reason="topk"))
    for settings in ONE_LEFT
]


@pytest.mark.parametrize("settings", ONE_LEFT, ids=str)
@pytest.mark.parametrize("mode", LEAN_MODES)
def test_greedy(mode, settings):
    assert (draw(mode=mode, **settings) == 2).all()
    assert (draw(-LOGITS, mode=mode, **settings) == 5).all()


@pytest.mark.parametrize("settings", ONE_LEFT_OF_TIES, ids=str)
@pytest.mark.parametrize("mode", LEAN_MODES)
def test_greedy_takes_the_first_of_equals(mode, settings):
    for logits, first in ((TIED, 1), (np.zeros(V), 0), (-np.abs(TIED), 2)):
        assert (draw(logits, mode=mode, **settings) == first).all()


def test_top_p_takes_the_fewest_that_reach_it():
    """Four tokens of probability 1/4, exactly: half of the whole is two of them, and hardly more is three."""
    logits = np.where(np.arange(V) % 2 == 0, 0.0, -np.inf)
    reached, passed = counts_of(draw(logits, top_p=0.5)), counts_of(draw(logits, top_p=0.51))
    assert (np.count_nonzero(reached), np.count_nonzero(passed)) == (2, 3)
    assert_distributed(np.sort(reached)[-2:], np.full(2, 1 / 2))
    assert_distributed(np.sort(passed)[-3:], np.full(3, 1 / 3))


def test_min_p_1_leaves_the_likeliest():
    assert (draw(min_p=1.0) == 2).all()
    assert_distributed(counts_of(draw(TIED, min_p=1.0)), np.isin(np.arange(V), [1, 3, 5]) / 3)


def test_temperature_0_needs_no_limits():
    limits = {**EVERYTHING, "temperature": 0.0}
    assert (draw(**limits) == 2).all()
    assert (draw(**{**limits, "repetition_penalty": 0.5}) == 4).all()


@pytest.mark.parametrize("off", [{"top_k": V}, {"top_k": V + 1}, {"top_k": 2**40}, {"top_p": 1.0}, {"min_p": 0.0}])
@pytest.mark.parametrize("others", [{}, {"temperature": 0.7, "repetition_penalty": 1.3}], ids=str)
def test_limits_that_are_off_change_nothing(off, others):
    np.testing.assert_array_equal(draw(**off, **others), draw(**others))


# Rows


@pytest.mark.parametrize("settings", [{}, EVERYTHING], ids=str)
def test_rows_are_drawn_each_by_itself(settings):
    generator = np.random.default_rng(5)
    logits, keys = generator.normal(size=(11, V)).astype("float32"), np.arange(11, dtype="int32")
    token_ids, lengths = generator.integers(0, V, (11, S)).astype("int32"), generator.integers(1, S, 11).astype("int32")
    arrays = [logits, token_ids, lengths, keys]
    call = compiled(MODES[-1], sample, (*arrays, Sampler().settings()))
    values = keras.tree.flatten(Sampler(**settings).settings())

    def ids_of(rows):
        return to_numpy(call([keras.ops.convert_to_tensor(array) for array in (*(a[rows] for a in arrays), *values)]))

    together, turned = ids_of(np.arange(11)), ids_of(np.arange(11)[::-1])
    np.testing.assert_array_equal(together, turned[::-1])
    np.testing.assert_array_equal(together, [ids_of(np.full(11, row))[0] for row in range(11)])


@pytest.mark.parametrize("mode", LEAN_MODES)
@pytest.mark.parametrize("penalty", [1.7, 0.4, 1.0])
def test_repetition_penalty_equals_a_loop(penalty, mode):
    generator = np.random.default_rng(7)
    logits = generator.normal(size=(11, V)).astype("float32")
    logits[:, 3], logits[:, 4] = -np.inf, 0
    token_ids, lengths = generator.integers(0, V, (11, S)).astype("int32"), np.arange(11, dtype="int32") % S + 1
    expected = logits.copy()
    for row, token in itertools.product(range(11), range(V)):
        if token in token_ids[row, : lengths[row]]:
            value = logits[row, token]
            expected[row, token] = value / penalty if value > 0 else value * penalty
    assert_close(run(mode, penalize_repetition, logits, token_ids, lengths, np.float32(penalty)), expected)


@pytest.mark.skipif(BACKEND == "torch", reason="nothing is compiled")
def test_one_compiled_function_serves_all_settings():
    traces = []

    def function(logits, settings):
        traces.append(1)
        token_ids, lengths = keras.ops.zeros((3, S), "int32"), keras.ops.ones((3,), "int32")
        return sample(logits, token_ids, lengths, lengths, settings)

    logits = np.zeros((3, V), "float32")
    call = compiled(MODES[-1], function, (logits, Sampler().settings()))
    for settings in (*SETTINGS, EVERYTHING, {"temperature": 0.0}):
        values = keras.tree.flatten(Sampler(**settings).settings())
        call([keras.ops.convert_to_tensor(array) for array in (logits, *values)])
    assert len(traces) == 1
