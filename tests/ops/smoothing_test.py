import keras
import numpy as np
import pytest

from keras_lt.ops.smoothing import smooth


def test_value_is_the_weighted_mean():
    random = np.random.default_rng(0)
    average = random.normal(size=(3, 5)).astype("float32")
    value = random.normal(size=(3, 5)).astype("float32")

    result = keras.ops.convert_to_numpy(smooth(0.7, average, value))

    np.testing.assert_allclose(result, 0.7 * average + 0.3 * value, rtol=0, atol=1e-6)


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.999])
def test_constant_value_follows_the_closed_form(decay):
    average = keras.ops.zeros((2,))
    for step in range(1, 30):
        average = smooth(decay, average, keras.ops.convert_to_tensor([0.75, -0.5]))
        expected = (1 - decay**step) * np.array([0.75, -0.5])
        np.testing.assert_allclose(keras.ops.convert_to_numpy(average), expected, rtol=0, atol=1e-6)


def test_ends_of_the_range():
    average, value = np.float32([2.0, -7.0]), np.float32([11.0, 5.0])
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(smooth(0.0, average, value)), value)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(smooth(1.0, average, value)), average)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_dtype_is_kept(dtype):
    result = smooth(0.9, keras.ops.ones((3,), dtype), keras.ops.zeros((3,), dtype))
    assert keras.backend.standardize_dtype(result.dtype) == dtype
