"""S2's highway layer against NumPy, where it starts, and what a stack of it does to the gradient."""

import json

import keras
import numpy as np
import pytest

from keras_lt.backend import implicit_mask
from keras_lt.layers import Highway
from layer_testing import FAST_MODE, LEAN_MODES, LOW_PRECISION, cached, drawn, float64, masking_embedding
from testing import assert_close, gradient, run, to_numpy

B, T, D = 3, 4, 5
NUMPY_ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}


@cached
def layer_of(activation, dtype="float32"):
    layer = drawn(Highway, activation, transform_gate_bias=-0.7, dtype=dtype)
    layer.build((None, None, D))
    return layer


def example(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def highway(layer, x, activation):
    """S2's `F(x) g(x) + x (1 - g(x))` of the vectors in `x`, `(..., D)`, unit by unit."""
    kernel, bias = float64(layer.projection.kernel), float64(layer.projection.bias)
    result = np.empty(x.shape)
    for place in np.ndindex(x.shape):
        unit, vector = place[-1], x[place[:-1]]
        transformed = NUMPY_ACTIVATIONS[activation](vector @ kernel[:, unit] + bias[unit])
        gate = 1 / (1 + np.exp(-(vector @ kernel[:, D + unit] + bias[D + unit])))
        result[place] = transformed * gate + x[place] * (1 - gate)
    return result


@pytest.mark.parametrize(("activation", "mode"), [(name, mode) for name in NUMPY_ACTIVATIONS for mode in LEAN_MODES])
def test_values_are_those_of_the_equation(activation, mode):
    layer, x = layer_of(activation), example(B, T, D)
    assert_close(run(mode, layer, x), highway(layer, float64(x), activation))


@pytest.mark.parametrize("shape", [(B, D), (2, B, T, D)])
def test_vectors_of_any_rank(shape):
    layer, x = layer_of("tanh"), example(*shape)
    assert_close(run(FAST_MODE, layer, x), highway(layer, float64(x), "tanh"))


def test_gradient_equals_finite_differences():
    layer, x = layer_of("tanh"), example(B, D)
    slopes = np.empty(x.shape)
    for place in np.ndindex(x.shape):
        step = np.zeros(x.shape)
        step[place] = 1e-5
        slopes[place] = (highway(layer, x + step, "tanh") - highway(layer, x - step, "tanh")).sum() / 2e-5
    assert_close(gradient(FAST_MODE, layer, x), slopes)


def test_it_starts_near_the_identity():
    layer = Highway()
    layer.build((None, D))
    np.testing.assert_array_equal(to_numpy(layer.projection.bias.value), [0] * D + [-2] * D)
    # With inputs of 0 the gate is its bias alone.
    assert abs(1 / (1 + np.exp(2)) - 0.12) < 0.001
    layer.projection.bias.assign([1.0] * D + [-2.0] * D)
    assert_close(layer(np.zeros((1, D))), np.full((1, D), 1 / (1 + np.exp(2))))


@pytest.mark.parametrize("bias", [-30, 30])
def test_the_bias_of_the_gate_decides_between_inputs_and_transformed(bias):
    layer, x = drawn(Highway, transform_gate_bias=bias), example(B, D)
    layer.build(x.shape)
    transformed = np.maximum(x @ float64(layer.projection.kernel)[:, :D] + float64(layer.projection.bias)[:D], 0)
    assert np.abs(transformed - x).min() > 0.001
    assert_close(layer(x), x if bias < 0 else transformed)


@pytest.mark.parametrize(("count", "bias"), [(1, -2.0), (7, -2.0), (7, 1.0)])
def test_the_gradient_through_many_layers_is_a_product_of_what_the_gates_leave(count, bias):
    """Where `F` and `g` are constant, `dH/dx = 1 - g`: S2's reason why residual learning, with a 1 there, is better."""
    layer = Highway(transform_gate_bias=bias, kernel_initializer="zeros", bias_initializer="ones")
    layer.build((None, D))

    def stack(x):
        for _ in range(count):
            x = layer(x)
        return x

    gate = 1 / (1 + np.exp(-bias))
    x = example(B, D)
    assert_close(run(FAST_MODE, stack, x), 1 + (x - 1) * (1 - gate) ** count)  # F is 1
    assert_close(gradient(FAST_MODE, stack, x), np.full((B, D), (1 - gate) ** count))


def test_both_kernels_start_as_they_would_alone():
    layer = Highway(kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    width = 40
    layer.build((None, width))
    transform, gate = np.split(to_numpy(layer.projection.kernel.value), 2, axis=1)
    for kernel in (transform, gate):
        # 1600 draws from a uniform distribution of that limit; as one kernel the limit would be 0.82 of it
        assert 0.98 < np.abs(kernel).max() / np.sqrt(6 / (2 * width)) < 1 + 1e-6
    assert (transform != gate).all()


def test_shapes():
    layer = layer_of("relu")
    assert layer.compute_output_shape((B, T, D)) == (B, T, D)
    assert layer(keras.Input((None, D))).shape == (None, None, D)
    assert tuple(layer(np.zeros((B, 0, D))).shape) == (B, 0, D)


def test_the_mask_goes_on_to_the_next_layer():
    token_ids = np.array([[3, 4, 0]])
    output = layer_of("relu")(masking_embedding(7, D)(token_ids))
    np.testing.assert_array_equal(to_numpy(implicit_mask(output)), token_ids != 0)


@pytest.mark.parametrize(("dtype", "mode"), LOW_PRECISION)
def test_low_precision_is_near(dtype, mode):
    layer, x = layer_of("tanh", dtype), example(B, T, D)
    result = run(mode, layer, x)
    assert keras.backend.standardize_dtype(result.dtype) == layer.compute_dtype
    # 11 and 8 bits of mantissa, for numbers up to 3
    assert_close(result, highway(layer, float64(x), "tanh"), 0.03 if "bfloat" in dtype else 0.004)


def test_configuration_and_file(tmp_path):
    arguments = {
        "activation": "tanh",
        "transform_gate_bias": -1.5,
        "kernel_initializer": "ones",
        "bias_initializer": "ones",
    }
    layer = Highway(**arguments, name="some_name")
    config = json.loads(json.dumps(layer.get_config()))
    again = Highway.from_config(config)
    assert again.get_config() == layer.get_config()
    assert all(layer.get_config()[name] != Highway().get_config()[name] for name in arguments)
    assert again.activation is keras.activations.tanh and again.transform_gate_bias == -1.5

    model, x = keras.Sequential([keras.Input((D,)), layer]), example(B, D)
    layer.set_weights(layer_of("tanh").get_weights())
    model.save(tmp_path / "model.keras")
    assert_close(keras.saving.load_model(tmp_path / "model.keras")(x), highway(layer, float64(x), "tanh"))


def test_wrong_shapes_and_arguments_are_errors():
    with pytest.raises(ValueError, match="to have value 5"):
        layer_of("relu")(np.zeros((B, T, D + 1)))
    with pytest.raises(ValueError, match="expected min_ndim=2, found ndim=1"):
        Highway()(np.zeros(D))
    with pytest.raises(ValueError, match="The last axis must have a known size. Received: input_shape="):
        Highway().build((None, None))
    with pytest.raises(ValueError, match="nope"):
        Highway("nope")


def test_integers_are_taken_as_floats():
    layer, x = layer_of("relu"), np.array([[3, -1, 0, 2, 5]])
    assert_close(to_numpy(layer(x)), highway(layer, x.astype("float64"), "relu"))


@pytest.mark.parametrize("bias", [None, "a", [1, 2], np.nan, np.inf])
def test_wrong_biases_of_the_gate(bias):
    with pytest.raises(ValueError, match="`transform_gate_bias` must be a number"):
        Highway(transform_gate_bias=bias)
