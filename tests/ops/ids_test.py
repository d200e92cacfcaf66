"""Ids in and out of a vocabulary, and how a compiled step says so."""

import keras
import numpy as np
import pytest

from keras_lt.ops import is_id, nan_unless
from testing import BACKEND, MODES, assert_close, run


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["int8", "int32", "int64", "uint8", "float32"])
def test_is_id(dtype, mode):
    ids = np.array([[0, 1, 64], [65, 66, 127]])
    expected = ids < 65
    if dtype != "uint8":
        ids, expected = np.append(ids, [[-1, -127, 3]], axis=0), np.append(expected, [[False, False, True]], axis=0)
    np.testing.assert_array_equal(run(mode, is_id, ids.astype(dtype), 65), expected)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8"])
def test_a_vocabulary_larger_than_the_dtype(dtype, mode):
    np.testing.assert_array_equal(run(mode, is_id, np.array([0, 1, 127]).astype(dtype), 70_001), [True, True, True])


@pytest.mark.parametrize("mode", MODES)
def test_the_ends_of_int32(mode):
    ids = np.array([2**31 - 1, -(2**31)], "int32")
    np.testing.assert_array_equal(run(mode, is_id, ids, 65), [False, False])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.skipif(BACKEND == "jax", reason="JAX cuts int64 off before we see it")
def test_int64_does_not_wrap_around(mode):
    np.testing.assert_array_equal(run(mode, is_id, np.array([2**32 + 3, 3 - 2**32, 3]), 65), [False, False, True])


def test_lists_and_numbers():
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(is_id([64, 65, -1], 65)), [True, False, False])
    assert bool(is_id(0, 1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_nan_unless(dtype, mode):
    values = np.arange(6, dtype="float32").reshape(3, 2)
    condition = np.array([True, False, True])

    def function(condition, values):
        result = nan_unless(condition[:, None], keras.ops.cast(values, dtype))
        assert keras.backend.standardize_dtype(result.dtype) == dtype
        return keras.ops.cast(result, "float32")

    expected = np.array([[0, 1], [np.nan, np.nan], [4, 5]])
    assert_close(run(mode, function, condition, values), expected, tolerance=0)
