"""Sinusoids against S1's formula, rotations against multiplication of complex numbers in float64."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_lt.ops import rotary_embedding, sinusoidal_positions
from testing import MODES, assert_close, run, to_numpy

B, N, T, H = 2, 3, 7, 10


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def complex_rotation(inputs, positions, base=10000.0):
    """Each pair (x_j, x_{j + H/2}) as a complex number, times exp(i position base^(-2j/H))."""
    half = inputs.shape[-1] // 2
    numbers = inputs[..., :half].astype("float64") + 1j * inputs[..., half:].astype("float64")
    angles = np.asarray(positions, "float64")[..., None] * np.array(
        [base ** (-2 * j / (2 * half)) for j in range(half)]
    )
    numbers = numbers * np.exp(1j * (angles if angles.ndim == 2 else angles[:, None]))
    return np.concatenate([numbers.real, numbers.imag], axis=-1)


@pytest.mark.parametrize(("length", "width"), [(11, 6), (5, 7), (1, 1), (3, 2), (0, 4), (301, 32)])
def test_sinusoids_of_source_1(length, width):
    expected = np.zeros((length, width))
    for p in range(1, length + 1):
        for i in range(1, width + 1):
            if i % 2:
                expected[p - 1, i - 1] = np.sin((p - 1) / 10000 ** ((i - 1) / width))
            else:
                expected[p - 1, i - 1] = np.cos((p - 1) / 10000 ** ((i - 2) / width))

    table = sinusoidal_positions(length, width)

    assert isinstance(table, np.ndarray)
    assert table.dtype == "float32"
    assert_close(table, expected)


@pytest.mark.parametrize("mode", MODES)
def test_rotation_is_complex_multiplication(mode):
    inputs = normal(B, N, T, H)
    for positions in (np.arange(T), np.array([range(3, 3 + T), [0, 0, 1, 2, 9, 4, 4]])):
        for base in (10000.0, 50.0):
            assert_close(
                run(mode, rotary_embedding, inputs, positions, base), complex_rotation(inputs, positions, base)
            )


def test_rotation_by_hand():
    quarter = np.pi / 2
    turned = rotary_embedding(np.array([[[[1.0, 0.0], [0.0, 1.0]]]], "float32"), np.array([quarter, quarter]))
    assert_close(turned, np.array([[[[0.0, 1.0], [-1.0, 0.0]]]]))
    assert_close(rotary_embedding(normal(B, N, T, H), np.zeros(T, "int32")), normal(B, N, T, H), tolerance=0)


@pytest.mark.parametrize("mode", MODES)
def test_products_depend_on_the_distance_only(mode):
    query, key = normal(1, 1, T, H), normal(1, 1, T, H, seed=1)

    def scores(query, key, positions):
        query, key = rotary_embedding(query, positions), rotary_embedding(key, positions)
        return ops.matmul(query, ops.swapaxes(key, 2, 3))

    # An angle of 19 is exact to 2e-6 in float32, and there are ten products.
    assert_close(
        run(mode, scores, query, key, np.arange(T)), run(mode, scores, query, key, np.arange(T) + 13), tolerance=2e-5
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_angles_are_float32_whatever_the_input(dtype, mode):
    """In bfloat16, which holds 8 bits, the positions 257 and 259 would be 256 and 260."""
    positions = np.array([255, 256, 257, 258, 259, 1001, 2049])
    inputs = to_numpy(ops.cast(ops.cast(normal(B, N, T, H), dtype), "float32"))

    def function(inputs, positions):
        rotated = rotary_embedding(ops.cast(inputs, dtype), positions)
        assert keras.backend.standardize_dtype(rotated.dtype) == dtype
        return ops.cast(rotated, "float32")

    # The result is rounded to dtype once; at position 2049 a float32 angle is exact to 1e-4.
    assert_close(run(mode, function, inputs, positions), complex_rotation(inputs, positions), tolerance=2**-8)


def test_heads_of_an_odd_size():
    with pytest.raises(ValueError, match=r"even size.*inputs\.shape=\(2, 3, 7, 9\)"):
        rotary_embedding(normal(2, 3, 7, 9), np.arange(7))
