"""The activations against their formulas."""

import math

import keras
import numpy as np
import pytest

from keras_lt.ops.activations import gelu, gelu_tanh
from testing import MODES, assert_close, gradient, run

INPUTS = np.linspace(-7, 7, 29, dtype="float32")


def formula(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("mode", MODES)
def test_gelu_tanh_is_the_tanh_formula(mode):
    inputs = INPUTS.astype("float64")
    expected = np.array([formula(x) for x in inputs])
    slopes = np.array([(formula(x + 1e-5) - formula(x - 1e-5)) / 2e-5 for x in inputs])
    assert_close(run(mode, gelu_tanh, INPUTS), expected)
    # Where tanh is almost -1, 1 - tanh^2 is rounding, which the slope multiplies by 0.1 x^3: 6e-8 becomes 2e-6, and
    # four times that where each of the operations rounds.
    assert_close(gradient(mode, gelu_tanh, INPUTS), slopes, tolerance=1e-5)
    exact = np.array([x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in inputs])
    assert 1e-4 < abs(expected - exact).max() < 1e-3  # so that the comparison above tells the two apart


@pytest.mark.parametrize("mode", MODES)
def test_gelu_is_its_formula(mode):
    def formula(x):
        return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))

    inputs = INPUTS.astype("float64")
    slopes = np.array([(formula(x + 1e-5) - formula(x - 1e-5)) / 2e-5 for x in inputs])
    assert_close(run(mode, gelu, INPUTS), np.array([formula(x) for x in inputs]))
    assert_close(
        gradient(mode, gelu, INPUTS), slopes, tolerance=2e-6
    )  # finite differences: 1e-10, and x times rounding
    assert_close(run(mode, gelu, INPUTS), run(mode, keras.activations.gelu, INPUTS))


def test_gelu_in_half_precision_is_rounded_once():
    inputs = keras.ops.cast(INPUTS, "bfloat16")
    found = gelu(inputs)
    assert keras.backend.standardize_dtype(found.dtype) == "bfloat16"
    exact = gelu(keras.ops.cast(inputs, "float32"))
    assert_close(keras.ops.cast(found, "float32"), keras.ops.cast(keras.ops.cast(exact, "bfloat16"), "float32"), 0)


def test_gelu_tanh_in_a_saved_model(tmp_path):
    layer = keras.layers.Dense(3, activation=gelu_tanh)
    model = keras.Sequential([keras.Input((5,)), layer])
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert again.layers[0].activation is gelu_tanh
    assert keras.saving.get_registered_name(gelu_tanh) == "keras_lt>gelu_tanh"
