"""`standardize` against S1's and S3's formula in NumPy, a closed form, and Keras's layer."""

import keras
import numpy as np
import pytest

from keras_lt.ops import standardize
from testing import MODES, assert_close, run, to_numpy

INPUTS = np.random.default_rng(0).normal(3, 5, size=(2, 3, 7)).astype("float32")


def looped(inputs, axis=-1, epsilon=1e-5):
    """As S3 writes `layer_norm`, with weight 1 and bias 0, a vector at a time."""
    result = np.zeros(inputs.shape)
    rows = np.moveaxis(inputs.astype("float64"), axis, -1)
    for index in np.ndindex(rows.shape[:-1]):
        mean = sum(rows[index]) / len(rows[index])
        variance = sum((x - mean) ** 2 for x in rows[index]) / len(rows[index])
        np.moveaxis(result, axis, -1)[index] = (rows[index] - mean) / np.sqrt(variance + epsilon)
    return result


@pytest.mark.parametrize("mode", MODES)
def test_formula(mode):
    for axis, epsilon in [(-1, 1e-5), (1, 1e-5), (0, 1e-3), (2, 0.5)]:
        assert_close(run(mode, standardize, INPUTS, axis, epsilon), looped(INPUTS, axis, epsilon))


@pytest.mark.parametrize("epsilon", [1e-5, 1e-2])
def test_layer_of_keras(epsilon):
    layer = keras.layers.LayerNormalization(epsilon=epsilon)
    layer.build(INPUTS.shape)
    gamma, beta = np.random.default_rng(1).normal(size=(2, INPUTS.shape[-1])).astype("float32")
    layer.set_weights([gamma, beta])
    expected = layer(INPUTS)
    # Keras multiplies by the square root's inverse, and by gamma before it subtracts the mean.
    assert_close(standardize(INPUTS, epsilon=epsilon) * gamma + beta, expected, tolerance=3e-6)


def test_epsilon():
    """The variance of the result is v / (v + epsilon); equal numbers become 0, not NaN."""
    for epsilon in (1e-5, 1.0, 30.0):
        variance = INPUTS.astype("float64").var(axis=-1)
        assert_close(to_numpy(standardize(INPUTS, epsilon=epsilon)).var(axis=-1), variance / (variance + epsilon))
    assert_close(standardize(np.full((2, 5), 7.0, "float32")), np.zeros((2, 5)), tolerance=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 1e-3), ("bfloat16", 1e-2)])  # the last place of dtype
def test_low_precision(dtype, tolerance, mode):
    """300 squared is more than float16 holds."""
    inputs = to_numpy(keras.ops.cast(keras.ops.cast(INPUTS * 300, dtype), "float32"))

    def function(inputs):
        result = standardize(keras.ops.cast(inputs, dtype))
        assert keras.backend.standardize_dtype(result.dtype) == dtype
        return keras.ops.cast(result, "float32")

    assert_close(run(mode, function, inputs), looped(inputs), tolerance)
