"""The kernels of the attention layers as the sources have them, after quantization and with LoRA."""

import keras
import numpy as np
import pytest

from keras_lt.layers import CausalMultiHeadAttention, CrossAttention
from layer_testing import FAST_MODE, attention_weights, causal, drawn, float64, multi_head_attention, quantize
from testing import assert_close, run, to_numpy

B, T, D = 3, 7, 10
KERNELS = ("query", "key", "value", "output")


def make(kind):
    """A layer inside a functional model, by which it is quantized."""
    layer = drawn(
        kind,
        6,
        head_dim=4,
        num_key_value_heads=2,
        use_bias=True,
    )
    inputs = [keras.Input((None, D)) for _ in range(1 if kind is CausalMultiHeadAttention else 2)]
    return layer, keras.Model(inputs, layer(*inputs))


def kernels(layer):
    return {name: float64(getattr(layer, f"{name}_kernel")) for name in KERNELS}


def expected_output(layer, x):
    visible = causal(T, T) if isinstance(layer, CausalMultiHeadAttention) else np.array(True)
    return multi_head_attention(attention_weights(layer), float64(x), float64(x), visible)[0]


def example():
    return np.random.default_rng(0).normal(size=(B, T, D)).astype("float32")


every_kind = pytest.mark.parametrize("kind", [CausalMultiHeadAttention, CrossAttention])


@every_kind
@pytest.mark.parametrize(("mode", "levels"), [("int8", 127), ("int4", 7)])
def test_kernels_of_a_quantized_layer_are_near_the_float_ones(kind, mode, levels):
    layer, model = make(kind)
    before = kernels(layer)

    quantize(model, mode)

    for name, kernel in kernels(layer).items():
        assert kernel.shape == before[name].shape
        error = np.abs(kernel - before[name]).max()
        # Rounding to a whole number of steps, of which the largest number has `levels`
        assert 0 < error <= 0.51 * np.abs(before[name]).max() / levels


@every_kind
@pytest.mark.parametrize("mode", ["int8", "int4"])
def test_a_quantized_layer_computes_with_the_kernels_it_shows(kind, mode):
    layer, model = make(kind)
    quantize(model, mode)
    x = example()
    # What is left is the rounding of the activations to 127 steps, of numbers up to 3, in two products.
    assert_close(run(FAST_MODE, lambda x: layer(x, *[x] * (len(model.inputs) - 1)), x), expected_output(layer, x), 0.1)


@every_kind
def test_kernels_of_a_float8_layer_are_those_of_the_layer(kind):
    layer, model = make(kind)
    before = kernels(layer)
    quantize(model, "float8")
    for name, kernel in kernels(layer).items():
        # Eight bits, of which three are mantissa
        assert_close(kernel, before[name], 0.07)


@every_kind
def test_lora_is_in_the_kernels(kind):
    layer, model = make(kind)
    x, before = example(), kernels(layer)
    projections = [part for part in layer._flatten_layers() if isinstance(part, keras.layers.Dense)]
    for projection in projections:
        projection.enable_lora(2)
    assert_close(kernels(layer), before)
    for projection in projections:
        shape = projection.lora_kernel_b.shape
        projection.lora_kernel_b.assign(np.random.default_rng(1).normal(size=shape))

    for name, kernel in kernels(layer).items():
        assert np.abs(kernel - before[name]).max() > 0.1
    output = run(FAST_MODE, lambda x: layer(x, *[x] * (len(model.inputs) - 1)), x)
    assert_close(output, expected_output(layer, x), 5e-6)  # larger kernels


@every_kind
def test_saving_and_loading_do_not_compute_the_kernels(kind, tmp_path, monkeypatch):
    _, model = make(kind)
    calls = []
    for name in ("query_kernel", "key_kernel", "value_kernel", "output_kernel"):
        monkeypatch.setattr(kind, name, property(lambda layer, name=name: calls.append(name)))
    model.save_weights(tmp_path / "model.weights.h5")
    model.load_weights(tmp_path / "model.weights.h5")
    assert calls == []


@every_kind
def test_a_quantized_layer_is_still_causal_and_ignores_padding(kind):
    layer, model = make(kind)
    quantize(model, "int8")
    x, changed = example(), example()
    changed[:, 4:] *= 10
    padding = np.broadcast_to(np.arange(T) < 4, (B, T))

    def function(x, y, padding):
        return layer(x, padding_mask=padding) if kind is CausalMultiHeadAttention else layer(x, y, padding_mask=padding)

    before, after = (run(FAST_MODE, function, x, y, padding) for y in (x, changed))
    np.testing.assert_array_equal(after, before)
    if kind is CausalMultiHeadAttention:
        np.testing.assert_array_equal(to_numpy(layer(changed))[:, :4], to_numpy(layer(x))[:, :4])
