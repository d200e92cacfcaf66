"""Attention to another sequence, against the equations in NumPy: values, padding, cache, errors."""

import re

import keras
import numpy as np
import pytest

from keras_lt.backend import implicit_mask
from keras_lt.layers import CrossAttention
from layer_testing import (
    FAST_MODE,
    LEAN_MODES,
    LOW_PRECISION,
    attention_weights,
    cached,
    compile_once,
    drawn,
    float64,
    masking_embedding,
    multi_head_attention,
)
from testing import assert_close, gradient, needs_torch, run, to_numpy

B, T, S, D, C = 3, 7, 5, 11, 13
OPTIONS = {
    "plain": {"num_heads": 1, "head_dim": 17},
    "biases": {"num_heads": 2, "head_dim": 19, "use_bias": True},
    "grouped": {"num_heads": 6, "head_dim": 4, "num_key_value_heads": 2},
    "everything": {"num_heads": 6, "head_dim": 4, "num_key_value_heads": 1, "dropout": 0.4, "use_bias": True},
}

every_mode = pytest.mark.parametrize("mode", LEAN_MODES)
every_option = pytest.mark.parametrize("option", OPTIONS)


@cached
def layer_of(option, dtype="float32"):
    layer = drawn(CrossAttention, **OPTIONS[option], dtype=dtype)
    layer.build((None, None, D), (None, None, C))
    return layer


@cached
def results_of(option, mode, dtype="float32"):
    """The layer as a function of inputs, context and two masks: without them, with them, with scores, with a cache."""
    layer = layer_of(option, dtype)

    def function(x, context, padding, attention_mask):
        masks = {"padding_mask": padding, "attention_mask": attention_mask}
        scored, scores = layer(x, context, return_attention_scores=True, **masks)
        cached, cache = layer(x, cache=layer.build_cache(context), **masks)
        results = {"plain": layer(x, context), "masked": layer(x, context, **masks), "scored": scored}
        return {**results, "cached": cached, "scores": scores, "cache": cache}

    return compile_once(mode, function, *example(option))


def example(option):
    """Inputs, a context, its padding mask (the last row's is all padding), and an attention mask of rank 4."""
    random = np.random.default_rng(0)
    x, context = (random.normal(size=shape).astype("float32") for shape in ((B, T, D), (B, S, C)))
    padding = random.random((B, S)) < 0.7
    padding[0, 0], padding[2] = False, False
    return x, context, padding, random.random((B, OPTIONS[option]["num_heads"], T, S)) < 0.7


def expected_attention(layer, x, context, visible=True):
    return multi_head_attention(attention_weights(layer), float64(x), float64(context), np.array(visible))


@every_mode
@every_option
def test_values_are_those_of_the_equations(option, mode):
    layer, (x, context, padding, attention_mask) = layer_of(option), example(option)

    results = results_of(option, mode)(x, context, padding, attention_mask)

    assert_close(results["plain"], expected_attention(layer, x, context)[0])
    visible = attention_mask & padding[:, None, None, :]
    masked, scores = expected_attention(layer, x, context, visible)
    for name, expected in (("masked", masked), ("scored", masked), ("cached", masked), ("scores", scores)):
        assert_close(results[name], expected)
    assert (results["scores"][~visible] == 0).all()


@every_mode
@every_option
def test_padding_in_the_context_changes_nothing(option, mode):
    x, context, padding, attention_mask = example(option)
    changed = np.where(padding[..., None], context, 100).astype("float32")

    before, after = (results_of(option, mode)(x, c, padding, attention_mask) for c in (context, changed))

    for name in ("masked", "scored", "cached", "scores"):
        np.testing.assert_array_equal(after[name], before[name])
    assert (after["plain"] != before["plain"]).any()


@every_mode
@every_option
def test_without_a_context_the_output_is_the_bias(option, mode):
    layer, (x, context, padding, attention_mask) = layer_of(option), example(option)
    attention_mask[0, :, 4] = False

    results = results_of(option, mode)(x, context, padding, attention_mask)

    bias = to_numpy(layer.output_projection.bias.value) if layer.use_bias else np.zeros(D, "float32")
    for name in ("masked", "scored", "cached"):
        np.testing.assert_array_equal(results[name][2], np.broadcast_to(bias, (T, D)))
        np.testing.assert_array_equal(results[name][0, 4], bias)
    assert (results["scores"][2] == 0).all()


@every_mode
def test_without_a_context_gradients_are_zero(mode):
    layer, (x, context, padding, _) = layer_of("everything"), example("everything")
    padding[:2] = True
    by_input, by_context = gradient(
        mode, lambda inputs, padding: layer(*inputs, padding_mask=padding), [x, context], padding
    )
    assert (by_input[2] == 0).all()
    assert (by_context[2] == 0).all()
    assert (by_input[:2] != 0).all()
    assert (by_context[:2] != 0).all()


@pytest.mark.parametrize(("dtype", "mode"), LOW_PRECISION)
def test_low_precision_is_finite_and_near(dtype, mode):
    layer = layer_of("everything", dtype)
    for own, other in zip(layer.weights, layer_of("everything").weights, strict=True):
        own.assign(other.value)
    arguments = example("everything")

    results, exact = (results_of("everything", mode, policy)(*arguments) for policy in (dtype, "float32"))

    for name in ("plain", "masked", "scored", "cached"):
        assert keras.backend.standardize_dtype(results[name].dtype) == layer.compute_dtype
        # 11 and 8 bits of mantissa, in outputs of size 2
        assert_close(results[name], exact[name], 0.08 if "bfloat" in dtype else 0.01)


@every_mode
def test_attention_masks_of_lower_rank(mode):
    layer, (x, context, _, attention_mask) = layer_of("grouped"), example("grouped")
    masks = [attention_mask[0, 0], attention_mask[:, 0], attention_mask[:, :1], attention_mask[:1]]

    results = run(mode, lambda x, c, *masks: [layer(x, c, attention_mask=m) for m in masks], x, context, *masks)

    for mask, result in zip(masks, results, strict=True):
        visible = mask[:, None] if mask.ndim == 3 else mask
        assert_close(result, expected_attention(layer, x, context, visible)[0])


@every_mode
def test_self_attention_sees_both_sides(mode):
    layer = drawn(CrossAttention, num_heads=2)
    layer.build((None, None, 10), (None, None, 10))
    x = np.random.default_rng(1).normal(size=(B, T, 10)).astype("float32")
    assert_close(run(mode, lambda x: layer(x, context=x), x), expected_attention(layer, x, x)[0])


@needs_torch
def test_equals_pytorch():
    import torch

    layer, (x, context, padding, _) = layer_of("plain"), example("plain")
    padding[:, 1] = True
    query, key, value = (
        torch.einsum("btd,ndh->bnth", torch.tensor(inputs), torch.tensor(float64(kernel)).float())
        for inputs, kernel in ((x, layer.query_kernel), (context, layer.key_kernel), (context, layer.value_kernel))
    )
    mask = torch.tensor(padding)[:, None, None]
    attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    expected = torch.einsum("bnth,nhd->btd", attended, torch.tensor(float64(layer.output_kernel)).float())

    assert_close(layer(x, context, padding_mask=padding), expected.numpy())


def test_defaults_and_views():
    layer = drawn(CrossAttention, num_heads=3)
    layer.build((None, None, 15), (None, None, C))
    assert layer.count_params() == 15 * 15 + 2 * C * 15 + 15 * 15
    kernels = [layer.query_kernel, layer.key_kernel, layer.value_kernel, layer.output_kernel]
    assert [tuple(kernel.shape) for kernel in kernels] == [(3, 15, 5), (3, C, 5), (3, C, 5), (3, 5, 15)]
    kernels = [layer_of("grouped").key_kernel, layer_of("grouped").value_kernel]
    assert [tuple(kernel.shape) for kernel in kernels] == [(2, C, 4), (2, C, 4)]


# Cache


@every_mode
def test_a_cache_serves_any_number_of_queries(mode):
    layer, (x, context, padding, _) = layer_of("everything"), example("everything")
    cache = to_numpy(layer.build_cache(context))
    assert {name: value.shape for name, value in cache.items()} == {"key": (B, 1, S, 4), "value": (B, 1, S, 4)}
    expected, scores = expected_attention(layer, x, context, padding[:, None, None])

    step = compile_once(
        mode,
        lambda x, cache, padding: layer(x, cache=cache, padding_mask=padding, return_attention_scores=True),
        *(x[:, :1], cache, padding),
    )

    for start, end in ((0, 3), (3, 4), (4, 7)):
        result = step(x[:, start:end], cache, padding)
        assert_close(result, (expected[:, start:end], scores[:, :, start:end], cache))


def test_a_cache_comes_back_as_it_was():
    layer, (x, context, *_) = layer_of("plain"), example("plain")
    cache = layer.build_cache(context)
    _, returned = layer(x, cache=cache)
    assert_close(returned, to_numpy(cache), tolerance=0)


# Implicit masks


@every_mode
@pytest.mark.parametrize("form", ["functional", "subclass"])
def test_implicit_mask_of_the_context(form, mode):
    layer = layer_of("everything")
    embeddings = [masking_embedding(19, width) for width in (D, C)]
    model = Translator(*embeddings, layer)
    if form == "functional":
        inputs = [keras.Input((None,), dtype="int32"), keras.Input((None,), dtype="int32")]
        model = keras.Model(inputs, model.call(inputs))
    target, source = np.array([[3, 0, 5, 2], [7, 18, 0, 0]]), np.array([[4, 2, 0, 0, 0, 0], [0, 0, 3, 1, 5, 9]])

    output = run(mode, lambda target, source: model([target, source]), target, source)

    tables = [float64(embedding.embeddings) for embedding in embeddings]
    visible = (source != 0)[:, None, None, :]
    assert_close(output, expected_attention(layer, tables[0][target], tables[1][source], visible)[0])


class Translator(keras.Model):
    def __init__(self, target_embedding, source_embedding, layer):
        super().__init__()
        self.target_embedding, self.source_embedding, self.layer = target_embedding, source_embedding, layer

    def call(self, inputs):
        target, source = inputs
        return self.layer(self.target_embedding(target), context=self.source_embedding(source))


def test_the_mask_of_the_inputs_goes_on_to_the_next_layer():
    target, source = np.array([[3, 4, 0]]), np.array([[5, 0, 0, 0]])
    x, context = (masking_embedding(19, width)(ids) for width, ids in ((D, target), (C, source)))
    output = layer_of("plain")(x, context)
    np.testing.assert_array_equal(to_numpy(implicit_mask(output)), target != 0)


def test_implicit_and_explicit_masks_both_count():
    layer, (x, context, *_) = layer_of("plain"), example("plain")
    first, second = np.ones((2, B, S), bool)
    first[:, 1] = second[:, 3] = False
    expected, _ = expected_attention(layer, x, context, (first & second)[:, None, None])
    assert_close(layer(x, context, context_mask=first, padding_mask=second), expected)


# Shapes and errors


def test_symbolic_results_have_the_real_shapes():
    layer, (x, context, *_) = layer_of("grouped"), example("grouped")
    real = run(FAST_MODE, lambda x, c: every_call(layer, x, c), x, context)
    for batch_size, length, context_length in ((None, None, None), (B, T, S), (None, T, None)):
        shapes = (batch_size, length, D), (batch_size, context_length, C)
        symbolic = every_call(layer, *(keras.Input(batch_shape=shape) for shape in shapes))
        keras.tree.assert_same_structure(symbolic, real)
        for one, other in zip(keras.tree.flatten(symbolic), keras.tree.flatten(real), strict=True):
            assert all(size in (None, actual) for size, actual in zip(one.shape, other.shape, strict=True))
            assert one.dtype == keras.backend.standardize_dtype(other.dtype)
    assert layer.compute_output_shape(x.shape, context.shape) == layer.compute_output_shape(x.shape) == x.shape


def every_call(layer, x, context):
    scored = layer(x, context, return_attention_scores=True)
    return [layer(x, context), scored, *(layer(x, cache=layer.build_cache(context)))]


def test_functional_model_with_a_cache_and_scores():
    layer = drawn(CrossAttention, num_heads=2, head_dim=4)
    layer.build((None, None, D), (None, None, C))
    x, cache = keras.Input((None, D)), {name: keras.Input((2, None, 4), name=name) for name in ("key", "value")}
    model = keras.Model([x, cache], layer(x, cache=cache, return_attention_scores=True))
    x, context, *_ = example("plain")
    cache = to_numpy(layer.build_cache(context))

    result = run(FAST_MODE, model, [x, cache])

    assert_close(result, (*expected_attention(layer, x, context), cache))


@pytest.mark.parametrize(("length", "context_length"), [(1, 1), (1, S), (0, S), (T, 1)])
def test_very_short_sequences(length, context_length):
    layer, (x, context, *_) = layer_of("everything"), example("everything")
    x, context = x[:, :length], context[:, :context_length]
    assert_close(layer(x, context), expected_attention(layer, x, context)[0])


@pytest.mark.parametrize(
    ("argument", "shape", "expected"),
    [
        ("attention_mask", (T,), "(3, 6, 7, 5)"),
        ("attention_mask", (S, T), "(3, 6, 7, 5)"),
        ("attention_mask", (T, B, S), "(3, 6, 7, 5)"),
        ("attention_mask", (B, 2, T, S), "(3, 6, 7, 5)"),
        ("padding_mask", (B, T), "(3, 5)"),
        ("padding_mask", (S,), "(3, 5)"),
        ("context_mask", (B, T), "(3, 5)"),
        ("context", (B + 1, S, C), "(3, None, None)"),
        ("context", (1, S, C), "(3, None, None)"),
        ("context", (S, C), "(3, None, None)"),
    ],
)
def test_a_wrong_shape_is_an_error_that_says_both(argument, shape, expected):
    layer, (x, context, *_) = layer_of("grouped"), example("grouped")
    with pytest.raises(ValueError, match=re.escape(expected)) as error:
        layer(x, **{"context": context, argument: np.ones(shape, "float32" if argument == "context" else "bool")})
    assert f"{argument}.shape={shape}" in str(error.value)


def test_wrong_calls_are_errors():
    layer, (x, context, _, attention_mask) = layer_of("grouped"), example("grouped")
    with pytest.raises(ValueError, match="one of `context` and `cache`. Received: neither"):
        layer(x)
    with pytest.raises(ValueError, match="one of `context` and `cache`. Received: both"):
        layer(x, context, cache=layer.build_cache(context))
    with pytest.raises(ValueError, match="needs the context"):
        CrossAttention(num_heads=1)(x)
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 13"):
        layer(x, x)
    with pytest.raises(ValueError, match="must be boolean"):
        layer(x, context, attention_mask=attention_mask.astype("float32"))
    with pytest.raises(ValueError, match="width 11, num_heads=2"):
        CrossAttention(num_heads=2)(x, context)


@pytest.mark.parametrize("shape", [(B + 1, 2, S, 4), (B, 6, S, 4), (B, 2, S, 5)])
def test_a_wrong_cache_is_an_error(shape):
    layer, (x, *_), cache = layer_of("grouped"), example("grouped"), np.zeros(shape, "float32")
    with pytest.raises(ValueError, match=re.escape("(3, 2, None, 4)")) as error:
        layer(x, cache={"key": cache, "value": cache})
    assert str(shape) in str(error.value)


def test_weights_exist_after_build():
    layer = drawn(CrossAttention, 6, head_dim=4, num_key_value_heads=2, use_bias=True, dropout=0.3)
    layer.build((None, None, D), (None, None, C))
    before = [variable.path for variable in layer.variables]
    run(FAST_MODE, lambda *inputs: layer(*inputs, training=True), np.zeros((B, T, D)), np.zeros((B, S, C)))
    assert [variable.path for variable in layer.variables] == before
    assert layer.count_params() == (D + 1) * 24 + (C + 1) * 16 + 24 * D + D
