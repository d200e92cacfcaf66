"""S1's FFN and S3's feed_forward, and its gated form, against NumPy and PyTorch."""

import math

import keras
import numpy as np
import pytest

from keras_lt.backend import implicit_mask
from keras_lt.layers import FeedForward
from layer_testing import (
    LEAN_MODES,
    LOW_PRECISION,
    cached,
    compile_once,
    drawn,
    feed_forward,
    float64,
    masking_embedding,
)
from testing import assert_close, needs_torch, run, to_numpy

B, T, D, F = 3, 7, 11, 13
OPTIONS = {
    "plain": {},
    "without_bias": {"intermediate_dim": F, "use_bias": False},
    "gated": {"intermediate_dim": F, "gated": True, "activation": "silu"},
    "everything": {"intermediate_dim": F, "gated": True, "activation": "gelu", "dropout": 0.4, "use_bias": False},
}


def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": gelu,
}


@cached
def layer_of(option, dtype="float32"):
    layer = drawn(FeedForward, **OPTIONS[option], dtype=dtype)
    layer.build((None, None, D))
    return layer


@cached
def compiled_layer(option, mode):
    return compile_once(mode, layer_of(option), example())


def example():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


every_case = pytest.mark.parametrize(("option", "mode"), [(option, mode) for option in OPTIONS for mode in LEAN_MODES])


@every_case
def test_values_are_those_of_the_equations(option, mode):
    layer, x = layer_of(option), example()
    activation = ACTIVATIONS[OPTIONS[option].get("activation", "relu")]
    assert_close(compiled_layer(option, mode)(x), feed_forward(layer, float64(x), activation))


@every_case
def test_each_position_is_treated_alone(option, mode):
    x, changed = example(), example()
    changed[:, 4] = 1e3

    before, after = (compiled_layer(option, mode)(y) for y in (x, changed))

    others = np.arange(T) != 4
    np.testing.assert_array_equal(after[:, others], before[:, others])
    assert (after[:, 4] != before[:, 4]).any()


@needs_torch
def test_equals_pytorch():
    import torch

    layer, x = layer_of("gated"), example()
    kernels = [torch.tensor(float64(dense.kernel)) for dense in (layer.intermediate, layer.output_projection)]
    biases = [torch.tensor(float64(dense.bias)) for dense in (layer.intermediate, layer.output_projection)]
    # PyTorch's `glu` scales the first half by a sigmoid of the second: SiLU is the identity times that.
    gate, linear = (torch.tensor(float64(x)) @ kernels[0] + biases[0]).chunk(2, dim=-1)
    expected = (torch.nn.functional.silu(gate) * linear) @ kernels[1] + biases[1]
    assert_close(layer(x), expected.numpy())


def test_default_width_is_four_times_the_input():
    layer = layer_of("plain")
    assert tuple(layer.intermediate.kernel.shape) == (D, 4 * D)
    assert tuple(layer.output_projection.kernel.shape) == (4 * D, D)
    assert layer.count_params() == D * 4 * D + 4 * D + 4 * D * D + D
    assert tuple(layer_of("gated").intermediate.kernel.shape) == (D, 2 * F)


@pytest.mark.parametrize(("dtype", "mode"), LOW_PRECISION)
def test_low_precision_is_near(dtype, mode):
    layer = layer_of("gated", dtype)
    for own, other in zip(layer.weights, layer_of("gated").weights, strict=True):
        own.assign(other.value)
    result = run(mode, layer, example())
    assert keras.backend.standardize_dtype(result.dtype) == layer.compute_dtype
    # 11 and 8 bits of mantissa, in outputs of size 4
    assert_close(result, compiled_layer("gated", mode)(example()), 0.1 if "bfloat" in dtype else 0.01)


@pytest.mark.parametrize("mode", LEAN_MODES)
def test_dropout_drops_its_share_and_scales_the_rest(mode):
    layer, x = layer_of("everything"), np.random.default_rng(1).normal(size=(200, T, D)).astype("float32")
    plain, dropped = run(mode, lambda x: (layer(x, training=False), layer(x, training=True)), x)
    gone = dropped == 0
    # 15,400 numbers: 0.02 is 5 standard deviations.
    assert abs(gone.mean() - 0.4) < 0.02
    assert_close(dropped[~gone], plain[~gone] / 0.6)


def test_shapes():
    layer = layer_of("gated")
    assert layer.compute_output_shape((B, T, D)) == (B, T, D)
    assert layer(keras.Input((None, D))).shape == (None, None, D)
    for shape in ((B, 1, D), (B, 0, D), (1, T, D)):
        assert tuple(layer(np.zeros(shape)).shape) == shape


def test_the_mask_goes_on_to_the_next_layer():
    token_ids = np.array([[3, 4, 0]])
    output = layer_of("plain")(masking_embedding(19, D)(token_ids))
    np.testing.assert_array_equal(to_numpy(implicit_mask(output)), token_ids != 0)


def test_weights_exist_after_build():
    layer = layer_of("everything")
    before = [variable.path for variable in layer.variables]
    layer(example(), training=True)
    assert [variable.path for variable in layer.variables] == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"intermediate_dim": 0},
            "`intermediate_dim` must be a positive integer or None. Received: intermediate_dim=0",
        ),
        ({"intermediate_dim": 2.5}, "intermediate_dim=2.5"),
        ({"dropout": 1}, "dropout=1"),
        ({"activation": "nope"}, "nope"),
    ],
)
def test_wrong_arguments_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        FeedForward(**arguments)


def test_another_width_or_rank_than_built_is_an_error():
    with pytest.raises(ValueError, match="to have value 11"):
        layer_of("plain")(np.zeros((B, T, D + 1)))
    with pytest.raises(ValueError, match="expected ndim=3, found ndim=2"):
        FeedForward()(np.zeros((B, D)))
