"""Masks against loops and written-out examples."""

import numpy as np
import pytest

from keras_lt.ops import causal_mask, combine_masks, expand_mask, expand_padding_mask
from testing import MODES, assert_close, needs_tensorflow, run, to_numpy

B, N, T, S = 2, 3, 5, 7


def looped(query_length, key_length, start_index=0, window_size=None):
    mask = np.zeros((query_length, key_length), bool)
    for t in range(query_length):
        for s in range(key_length):
            position = start_index + t
            mask[t, s] = s <= position and (window_size is None or position - window_size + 1 <= s)
    return mask


def assert_mask(actual, expected):
    assert to_numpy(actual).dtype == bool
    np.testing.assert_array_equal(to_numpy(actual), expected)


def test_written_out():
    assert_mask(causal_mask(3, 3), np.array([[1, 0, 0], [1, 1, 0], [1, 1, 1]], bool))
    assert_mask(causal_mask(2, 4, start_index=2), np.array([[1, 1, 1, 0], [1, 1, 1, 1]], bool))
    assert_mask(causal_mask(3, 3, window_size=2), np.array([[1, 0, 0], [1, 1, 0], [0, 1, 1]], bool))


@pytest.mark.parametrize("mode", MODES)
def test_loops(mode):
    """The start index a Python number, a traced number, and a traced number a row."""
    cases = [(*sizes, window) for sizes in [(T, S), (S, T), (1, S), (T, 1), (0, S)] for window in (None, 1, 3, 99)]

    def function(start, starts):
        return [[causal_mask(*sizes, at, window) for at in (2, start, starts)] for *sizes, window in cases]

    results = run(mode, function, np.array(2), np.array([2, 0, 4]))

    for (*sizes, window), masks in zip(cases, results, strict=True):
        expected = [looped(*sizes, start, window) for start in (2, 0, 4)]
        for mask, wanted in zip(masks, (expected[0], expected[0], np.stack(expected)), strict=True):
            assert_mask(mask, wanted)


@pytest.mark.parametrize("window_size", [2**31 - 1, 2**31, 2**40])
def test_no_window_is_too_wide(window_size):
    assert_mask(causal_mask(T, S, 1, window_size), looped(T, S, 1))


@pytest.mark.parametrize("start", [np.int64(1), np.array(1, "uint8"), [1, 1], np.array([1, 1], "int64")])
def test_any_whole_number_is_a_start(start):
    expected = looped(T, S, 1, 3)
    assert_mask(causal_mask(T, S, start, 3), expected if np.ndim(start) == 0 else np.stack([expected, expected]))


@needs_tensorflow
def test_unknown_lengths():
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((None, None)), tf.TensorSpec((), "int32")])
    def function(scores, start):
        return causal_mask(tf.shape(scores)[0], tf.shape(scores)[1], start, 2)

    assert_mask(function(np.zeros((T, S), "float32"), 1), looped(T, S, 1, 2))


def test_expand_mask_puts_the_missing_axes_in():
    random = np.random.default_rng(0)
    for shape, expanded in {
        (T, S): (1, 1, T, S),
        (B, T, S): (B, 1, T, S),
        (1, T, S): (1, 1, T, S),
        (B, N, T, S): (B, N, T, S),
        (B, 1, T, S): (B, 1, T, S),
        (1, N, T, S): (1, N, T, S),
    }.items():
        mask = random.random(shape) < 0.5
        for sizes in [(T, S, N, B), (T, S), (None, None)]:
            assert_mask(expand_mask(mask, *sizes), mask.reshape(expanded))


@pytest.mark.parametrize(
    "shape",
    [(), (S,), (S, T), (1, S), (T, 1), (B, S), (N, T, S), (B, T, T), (B, B, T, S), (B, N, S, T), (1, B, N, T, S)],
)
def test_expand_mask_refuses(shape):
    with pytest.raises(ValueError, match="Received") as error:
        expand_mask(np.ones(shape, bool), T, S, N, B, name="attention_mask")
    assert f"{(B, N, T, S)}. Received: attention_mask.shape={shape}" in str(error.value)


def test_expand_padding_mask():
    mask = np.random.default_rng(0).random((B, S)) < 0.5
    for kind in ("bool", "int32", "uint8", "float32"):
        for sizes in [(S, B), (S,), (None,)]:
            assert_mask(expand_padding_mask(mask.astype(kind), *sizes), mask.reshape(B, 1, 1, S))
    assert expand_padding_mask(None, S) is None


@pytest.mark.parametrize("shape", [(), (S,), (S, B), (1, S), (B, 1), (B, S, 1)])
def test_expand_padding_mask_refuses(shape):
    with pytest.raises(ValueError, match="Received") as error:
        expand_padding_mask(np.ones(shape, bool), S, B, name="mask")
    assert f"{(B, S)}. Received: mask.shape={shape}" in str(error.value)


def test_combine_masks():
    random = np.random.default_rng(0)
    masks = [random.random(shape) < 0.7 for shape in [(1, 1, T, S), (B, 1, 1, S), (B, N, T, S)]]
    assert combine_masks() is None
    assert combine_masks(None, None) is None
    assert combine_masks(None, masks[0], None) is masks[0]
    assert_mask(combine_masks(masks[0], None, *masks[1:]), masks[0] & masks[1] & masks[2])
    assert_close(combine_masks(*masks[:2]), masks[0] & masks[1])
