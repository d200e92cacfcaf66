"""The cache against a loop over rows, heads and tokens."""

import keras
import numpy as np
import pytest

from keras_lt.ops import update_cache
from keras_lt.ops.cache import place_mask
from testing import MODES, assert_close, run, to_numpy

B, K, S, H = 3, 2, 7, 5


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def looped(cache, new, starts):
    cache = cache.copy()
    for b in range(B):
        for t in range(new.shape[2]):
            place = starts[b] + t
            if 0 <= place < S:
                cache[b, :, place] = new[b, :, t]
            elif new.shape[2] == 1:
                cache[b, :, -1] = 0
    return cache


def looped_mask(mask, starts):
    placed = np.ones((B, S), bool)
    for b in range(B):
        for t in range(mask.shape[1]):
            if 0 <= starts[b] + t < S:
                placed[b, starts[b] + t] = mask[b, t]
    return placed


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 4, 11])
def test_each_row_at_its_own_place(length, mode):
    """The last starts write outside the cache, partly and wholly: that is dropped, or a 0 where it is all there is."""
    cache, new = normal(B, K, S, H), normal(B, K, length, H, seed=1)
    mask = np.random.default_rng(2).random((B, length)) < 0.5

    starts = [[0, 2, 3], [6, 5, 4], [S, -1, -12]]

    def function(cache, new, mask, starts):
        return [(update_cache(cache, new, start), place_mask(mask, S, start)) for start in (*starts, 2)]

    results = run(mode, function, cache, new, mask, [*map(np.array, starts), np.array(2)])

    for (written, placed), start in zip(results, [*starts, [2] * B, [2] * B], strict=True):
        np.testing.assert_array_equal(written, looped(cache, new, start))
        np.testing.assert_array_equal(placed, looped_mask(mask, start))


def test_the_cache_keeps_its_dtype():
    cache = keras.ops.cast(normal(B, K, S, H), "bfloat16")
    new = keras.ops.cast(normal(B, K, 2, H, seed=1), "bfloat16")
    written = update_cache(cache, keras.ops.cast(new, "float32"), 3)
    assert keras.backend.standardize_dtype(written.dtype) == "bfloat16"
    cache, new, written = (to_numpy(keras.ops.cast(x, "float32")) for x in (cache, new, written))
    assert_close(written, looped(cache, new, [3] * B), tolerance=0)


def test_whole_numbers_are_a_mask():
    mask = np.array([[1, 0], [0, 2], [1, 1]])
    assert_close(place_mask(mask, S, 3), looped_mask(mask, [3] * B))


def test_nothing_new():
    cache = normal(B, K, S, H)
    assert_close(update_cache(cache, cache[:, :, :0], 3), cache, tolerance=0)
    assert place_mask(np.ones((B, 0), bool), S, 3) is None
    assert place_mask(None, S, 3) is None
