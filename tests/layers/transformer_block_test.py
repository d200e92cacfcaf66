"""S3's block, S1's layer, the encoder and the decoder block, against NumPy built from the sources, and their laws."""

import math
import re

import keras
import numpy as np
import pytest

from keras_lt.backend import implicit_mask
from keras_lt.layers import TransformerBlock
from layer_testing import (
    FAST_MODE,
    LEAN_MODES,
    LOW_PRECISION,
    attention_weights,
    cached,
    causal,
    compile_once,
    drawn,
    feed_forward,
    float64,
    layer_norm,
    masking_embedding,
    multi_head_attention,
)
from testing import BACKEND, MODES, assert_close, gradient, needs_torch, run, to_numpy

B, T, S, D, C, F, CACHE = 3, 7, 5, 11, 13, 17, 19
SMALL = {"num_heads": 1, "head_dim": 2}
LARGE = {
    **{"num_heads": 6, "head_dim": 4, "num_key_value_heads": 2, "intermediate_dim": F, "gated": True},
    **{"activation": "gelu", "attention_bias": True, "dropout": 0.4, "layer_norm_epsilon": 1e-3},
}
OPTIONS = {
    "pre_norm": SMALL,
    "post_norm": {**SMALL, "norm_first": False},
    "everything": {**LARGE, "window_size": 3, "rotary": True, "feed_forward_bias": False},
    "encoder": {**LARGE, "causal": False},
    "encoder_post_norm": {**SMALL, "causal": False, "norm_first": False},
    "decoder": SMALL,
    "decoder_everything": {**LARGE, "window_size": 3, "rotary": True, "norm_first": False},
}
CAUSAL = [name for name in OPTIONS if "encoder" not in name or "decoder" in name]
RESULTS = ("plain", "masked", "scored")

every_mode = pytest.mark.parametrize("mode", LEAN_MODES)


def options_and_modes(options, compiled=("everything", "encoder", "decoder_everything")):
    """Compiling is what costs time: of the options whose parts are compiled elsewhere only some are, here."""
    pairs = [(name, mode) for name in options for mode in LEAN_MODES if mode == "eager" or name in compiled]
    return pytest.mark.parametrize(("option", "mode"), pairs)


@cached
def layer_of(option, dtype="float32"):
    layer = drawn(TransformerBlock, **OPTIONS[option], dtype=dtype)
    layer.build((None, None, D), (None, None, C) if "decoder" in option else None)
    for variable in layer.trainable_variables:  # normalisations that do something
        if "norm" in variable.path:
            variable.assign(np.random.default_rng(len(variable.path)).normal(size=D) + ("gamma" in variable.path))
    return layer


def example(option):
    """Inputs, encoder output, masks of both, an attention mask; where the last two rows see no encoder output."""
    random = np.random.default_rng(0)
    x, context = (random.normal(size=shape).astype("float32") for shape in ((B, T, D), (B, S, C)))
    padding, context_padding = random.random((B, T)) < 0.8, random.random((B, S)) < 0.6
    padding[0, :2], padding[1] = False, True
    context_padding[0, 1], context_padding[1:] = True, False
    return x, context, padding, context_padding, random.random((B, OPTIONS[option]["num_heads"], T, T)) < 0.7


@cached
def results_of(option, mode, dtype="float32"):
    layer = layer_of(option, dtype)

    def function(x, context, padding, context_padding, attention_mask):
        inputs, masks = [x], {"padding_mask": padding, "attention_mask": attention_mask}
        if "decoder" in option:
            inputs, masks = [x, context], {**masks, "encoder_padding_mask": context_padding}
        scored, scores = layer(*inputs, **masks, return_attention_scores=True)
        return {"plain": layer(*inputs), "masked": layer(*inputs, **masks), "scored": scored, "scores": scores}

    return compile_once(mode, function, *example(option))


def gelu(x):
    return x * (1 + np.vectorize(math.erf, otypes=["float64"])(x / math.sqrt(2))) / 2


def expected_block(layer, x, visible=True, context=None, context_visible=True):
    """S3: `x + half(layer_norm(x))`; S1: `LayerNorm(half(x) + x)`; for self-attention, (cross-attention,) FFN."""
    x, visible = float64(x), np.array(visible)
    positions = (np.arange(x.shape[1]),) * 2 if layer.rotary else ()
    if layer.causal:
        visible = visible & causal(x.shape[1], x.shape[1], 0, layer.window_size)
    scores = []

    def self_attention(x):
        output, weights = multi_head_attention(attention_weights(layer.attention), x, x, visible, *positions)
        scores.append(weights)
        return output

    def cross_attention(x):
        weights = attention_weights(layer.cross_attention)
        output, weights = multi_head_attention(weights, x, float64(context), np.array(context_visible))
        scores.append(weights)
        return output

    def network(x):
        return feed_forward(layer.feed_forward, x, gelu if layer.gated else lambda x: np.maximum(x, 0))

    halves = [(self_attention, layer.attention_norm), (network, layer.feed_forward_norm)]
    if context is not None:
        halves.insert(1, (cross_attention, layer.cross_attention_norm))
    for half, norm in halves:
        gamma, beta = float64(norm.gamma), float64(norm.beta)
        if layer.norm_first:
            x = x + half(layer_norm(x, gamma, beta, layer.layer_norm_epsilon))
        else:
            x = layer_norm(half(x) + x, gamma, beta, layer.layer_norm_epsilon)
    return x, scores[0] if context is None else tuple(scores)


def expected_results(option):
    layer, (x, context, padding, context_padding, attention_mask) = layer_of(option), example(option)
    contexts = [{}, {}]
    if "decoder" in option:
        contexts = [{"context": context}, {"context": context, "context_visible": context_padding[:, None, None]}]
    masked, scores = expected_block(layer, x, attention_mask & padding[:, None, None], **contexts[1])
    return {"plain": expected_block(layer, x, **contexts[0])[0], "masked": masked, "scored": masked, "scores": scores}


# Values


@options_and_modes(OPTIONS)
def test_values_are_those_of_the_equations(option, mode):
    results, expected = results_of(option, mode)(*example(option)), expected_results(option)
    # Outputs reach 10, and a norm divides by a standard deviation that may be small.
    assert_close(results, expected, 5e-6)


@needs_torch
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_equals_pytorch(is_causal, norm_first):
    import torch

    options = {"attention_bias": True, "activation": "gelu", "norm_first": norm_first}
    block = drawn(TransformerBlock, 2, intermediate_dim=F, causal=is_causal, **options)
    x = np.random.default_rng(1).normal(size=(B, T, 14)).astype("float32")
    output = block(x)
    reference = torch.nn.TransformerEncoderLayer(
        14, 2, F, 0.0, activation="gelu", norm_first=norm_first, batch_first=True
    ).eval()
    weights = attention_weights(block.attention)
    state = {
        "self_attn.in_proj_weight": [
            np.concatenate(list(weights[name]), axis=1).T for name in ("query", "key", "value")
        ],
        "self_attn.in_proj_bias": [weights[f"{name}_bias"].ravel() for name in ("query", "key", "value")],
        "self_attn.out_proj.weight": [weights["output"].reshape(14, 14).T],
        "self_attn.out_proj.bias": [weights["output_bias"]],
        "linear1.weight": [float64(block.feed_forward.intermediate.kernel).T],
        "linear1.bias": [float64(block.feed_forward.intermediate.bias)],
        "linear2.weight": [float64(block.feed_forward.output_projection.kernel).T],
        "linear2.bias": [float64(block.feed_forward.output_projection.bias)],
    }
    state = {name: torch.tensor(np.concatenate(parts)).float() for name, parts in state.items()}
    reference.load_state_dict(state, strict=False)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(T) if is_causal else None
    with torch.no_grad():
        assert_close(output, reference(torch.tensor(x), src_mask=mask, is_causal=is_causal).numpy(), 2e-6)


def test_default_sizes():
    block = drawn(TransformerBlock, num_heads=4)
    block.build((None, None, 32))
    # S3: qw, kw, vw and proj, two linear layers with biases, two norms
    assert block.count_params() == 4 * 32 * 32 + (32 * 128 + 128) + (128 * 32 + 32) + 2 * 2 * 32
    assert block.layer_norm_epsilon == 1e-5


@pytest.mark.parametrize("option", ["pre_norm", "decoder_everything"])
def test_weights_exist_after_build(option):
    layer, (x, context, *_) = layer_of(option), example(option)
    before = [variable.path for variable in layer.variables]
    inputs = [x, context] if "decoder" in option else [x]
    run(FAST_MODE, lambda *inputs: layer(*inputs, training=True, return_attention_scores=True), *inputs)
    assert [variable.path for variable in layer.variables] == before


def test_arguments_reach_the_inner_layers():
    layer = layer_of("decoder_everything", "mixed_bfloat16")
    for inner in layer._flatten_layers():
        assert inner.dtype_policy.name == "mixed_bfloat16"
    assert [part.dropout for part in (layer.attention, layer.cross_attention, layer.feed_forward)] == [0.4] * 3
    assert layer.dropout_layer.rate == 0.4
    assert layer.attention_norm.epsilon == layer.feed_forward_norm.epsilon == layer.cross_attention_norm.epsilon == 1e-3


# Causality


@options_and_modes(CAUSAL)
def test_later_inputs_change_nothing(option, mode):
    function, (x, *others) = results_of(option, mode), example(option)
    before = function(x, *others)
    for t in (0, 3, 5):
        changed = x.copy()
        changed[:, t + 1 :] = 100 * np.random.default_rng(t).normal(size=(B, T - t - 1, D))
        after = function(changed, *others)
        for name in RESULTS:
            np.testing.assert_array_equal(after[name][:, : t + 1], before[name][:, : t + 1])
        assert (after["plain"][:, t + 1 :] != before["plain"][:, t + 1 :]).any()


@pytest.mark.parametrize("option", ["encoder", "encoder_post_norm"])
def test_an_encoder_sees_both_sides(option):
    x, *_ = example(option)
    changed = x.copy()
    changed[:, -1] *= -1
    assert (np.abs(to_numpy(layer_of(option)(changed)) - to_numpy(layer_of(option)(x)))[:, 0] > 1e-4).any()


@pytest.mark.parametrize(("dtype", "mode"), LOW_PRECISION)
def test_low_precision_is_causal_finite_and_near(dtype, mode):
    layer = layer_of("everything", dtype)
    for own, other in zip(layer.weights, layer_of("everything").weights, strict=True):
        own.assign(other.value)
    function, (x, *others) = results_of("everything", mode, dtype), example("everything")
    changed = x.copy()
    changed[:, 4:] *= 50

    before, after = function(x, *others), function(changed, *others)

    exact = expected_results("everything")
    for name in RESULTS:
        np.testing.assert_array_equal(after[name][:, :4], before[name][:, :4])
        assert np.isfinite(float64(after[name])).all()
        assert keras.backend.standardize_dtype(before[name].dtype) == layer.compute_dtype
        # 11 and 8 bits of mantissa, through eight layers, in outputs of size 10
        assert_close(before[name], exact[name], 0.3 if "bfloat" in dtype else 0.04)


# Padding


@options_and_modes(OPTIONS)
def test_padding_changes_nothing_at_real_positions(option, mode):
    function, (x, context, _, context_padding, attention_mask) = results_of(option, mode), example(option)
    other = np.where(context_padding[..., None], context, 30).astype("float32")
    lengths = np.array([[4], [7], [1]])
    for padding in (np.arange(T) < lengths, np.arange(T) >= T - lengths):
        changed = np.where(padding[..., None], x, 30 * np.random.default_rng(1).normal(size=x.shape)).astype("float32")
        before = function(x, context, padding, context_padding, attention_mask)
        after = function(changed, other, padding, context_padding, attention_mask)
        for name in ("masked", "scored"):
            np.testing.assert_array_equal(after[name][padding], before[name][padding])
            assert np.isfinite(after[name]).all()


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16"])
@pytest.mark.parametrize("option", ["everything", "decoder_everything"])
def test_gradients_of_empty_rows_are_finite(option, dtype):
    layer, (x, context, padding, context_padding, _) = layer_of(option, dtype), example(option)
    padding[0], context_padding[0] = False, False
    inputs = {"x": x, "context": context} if "decoder" in option else {"x": x}

    def function(inputs, padding, context_padding):
        masks = {"encoder_padding_mask": context_padding} if "decoder" in option else {}
        return layer(inputs["x"], inputs.get("context"), padding_mask=padding, **masks)

    gradients = gradient(FAST_MODE, function, inputs, padding, context_padding)

    assert np.isfinite(gradients["x"]).all()
    if "decoder" in option:
        assert (gradients["context"][0] == 0).all()
        assert np.isfinite(gradients["context"]).all()


@every_mode
@pytest.mark.parametrize("option", ["everything", "encoder", "decoder_everything"])
def test_implicit_masks_of_embeddings(option, mode):
    layer = layer_of(option)
    embeddings = [masking_embedding(23, width) for width in (D, C)]
    is_decoder = "decoder" in option
    inputs = [keras.Input((None,), dtype="int32") for _ in range(1 + is_decoder)]
    model = keras.Model(inputs, layer(*(embed(x) for embed, x in zip(embeddings, inputs, strict=False))))
    target, source = np.array([[0, 0, 3, 20, 5], [7, 18, 0, 0, 0]]), np.array([[4, 2, 0], [0, 0, 9]])
    arguments = [target, source][: 1 + is_decoder]

    output = run(mode, lambda *arguments: model(list(arguments)), *arguments)

    tables = [float64(embedding.embeddings) for embedding in embeddings]
    for row, real in enumerate(target != 0):
        x = tables[0][target[row : row + 1, real]]
        context = tables[1][source[row : row + 1, source[row] != 0]] if is_decoder else None
        assert_close(output[row : row + 1, real], expected_block(layer, x, context=context)[0], 5e-6)


def test_the_mask_goes_on_to_the_next_layer():
    embedding, token_ids = masking_embedding(23, D), np.array([[0, 3, 4, 0]])
    block, encoder, decoder = (layer_of(option) for option in ("pre_norm", "encoder", "decoder"))

    def masks(token_ids, context):
        x = embedding(token_ids)
        outputs = [block(x), encoder(x, return_attention_scores=True)[0], decoder(x, context)]
        return [implicit_mask(output) for output in outputs]

    for mask in run(FAST_MODE, masks, token_ids, np.ones((1, S, C), "float32")):
        np.testing.assert_array_equal(mask, token_ids != 0)


# Cache


@cached
def step_of(option, mode):
    layer, (x, context, *_) = layer_of(option), example(option)
    cache = layer.build_cache(B, CACHE, context if "decoder" in option else None)

    def step(x, cache, start_index, context_padding):
        masks = {"encoder_padding_mask": context_padding} if "decoder" in option else {}
        return layer(x, cache=cache, start_index=start_index, **masks)

    arguments = x[:, :1], to_numpy(cache), np.zeros(B, "int32"), np.ones((B, S), bool)
    return compile_once(mode, step, *arguments), to_numpy(cache)


@options_and_modes(CAUSAL, compiled=["everything", "decoder_everything"])
def test_cached_decoding_equals_the_uncached_pass(option, mode):
    layer, (x, context, _, context_padding, _) = layer_of(option), example(option)
    (step, cache), rows = step_of(option, mode), np.arange(B)[:, None]
    arguments = {"context": context, "context_visible": context_padding[:, None, None]} if "decoder" in option else {}
    expected, _ = expected_block(layer, x, **arguments)
    # A chunk of 3 of which row b keeps 1, 2, 3; then single tokens, each row at its own place; then a chunk again.
    chunks = [(np.zeros(B, "int32"), 3)]
    chunks += [(np.array([1, 2, 3], "int32") + number, 1) for number in range(3)]
    chunks += [(np.array([4, 4, 4], "int32"), 3)]
    for starts, length in chunks:
        places = starts[:, None] + np.arange(length)
        output, cache = step(x[rows, places], cache, starts, context_padding)
        # The contract of decoding, for outputs that reach 10
        assert_close(output, expected[rows, places], 1e-5)


def test_scores_come_with_a_cache():
    layer, (x, context, *_) = layer_of("decoder"), example("decoder")

    def function(x, context):
        return layer(x, cache=layer.build_cache(B, CACHE, context), return_attention_scores=True)

    output, scores, cache = run(FAST_MODE, function, x, context)
    expected, expected_scores = expected_block(layer, x, context=context)
    assert_close(output, expected, 5e-6)
    assert_close((scores[0][..., :T], scores[1]), expected_scores)
    assert (scores[0][..., T:] == 0).all()
    assert set(cache) == {"self_attention", "cross_attention"}


@pytest.mark.parametrize("start", [CACHE - 2, -1, np.array([0, 18, 2])])
def test_eager_positions_outside_the_cache_are_an_error(start):
    layer, (x, *_) = layer_of("pre_norm"), example("pre_norm")
    with pytest.raises(ValueError, match="cache holds 19 positions"):
        layer(x[:, :3], cache=layer.build_cache(B, CACHE), start_index=start)


@pytest.mark.skipif(MODES == ["eager"], reason="nothing is compiled on this backend")
def test_compiled_positions_outside_the_cache_are_nan():
    (step, cache), (x, *_) = step_of("everything", LEAN_MODES[-1]), example("everything")
    starts = np.array([17, 4, -1], "int32")
    output, cache = step(x[:, :3], cache, starts, np.ones((B, S), bool))
    places = starts[:, None] + np.arange(3)
    outside = (places < 0) | (places >= CACHE)
    np.testing.assert_array_equal(np.isnan(output), np.broadcast_to(outside[..., None], output.shape))
    assert all(np.isfinite(value).all() for value in cache.values())


# Shapes


@pytest.mark.parametrize("option", ["everything", "encoder", "decoder_everything"])
def test_symbolic_results_have_the_real_shapes(option):
    layer, (x, context, *_) = layer_of(option), example(option)
    arrays = [x, context] if "decoder" in option else [x]
    real = run(FAST_MODE, lambda *inputs: every_call(layer, *inputs), *arrays)
    for batch_size, length, context_length in ((None, None, None), (B, T, S), (None, T, None)):
        shapes = [(batch_size, length, D), (batch_size, context_length, C)][: len(arrays)]
        symbolic = every_call(layer, *(keras.Input(batch_shape=shape) for shape in shapes))
        keras.tree.assert_same_structure(symbolic, real)
        for one, other in zip(keras.tree.flatten(symbolic), keras.tree.flatten(real), strict=True):
            assert all(size in (None, actual) for size, actual in zip(one.shape, other.shape, strict=True))
            assert one.dtype == keras.backend.standardize_dtype(other.dtype)
    assert layer.compute_output_shape(*(array.shape for array in arrays)) == (B, T, D)


def every_call(layer, x, context=None):
    results = [layer(x, context), layer(x, context, return_attention_scores=True)]
    if layer.causal and x.shape[0] is not None:
        cache = layer.build_cache(B, CACHE, context)
        results += [layer(x, cache=cache), layer(x, cache=cache, return_attention_scores=True)]
    elif layer.causal:
        cache = {name: keras.Input((2, CACHE, 4)) for name in ("key", "value")}
        if context is not None:
            cross_cache = {name: keras.Input((2, context.shape[1], 4)) for name in ("key", "value")}
            cache = {"self_attention": cache, "cross_attention": cross_cache}
        results += [layer(x, cache=cache), layer(x, cache=cache, return_attention_scores=True)]
    return results


def test_functional_encoder_and_decoder_on_any_length():
    encoder = drawn(TransformerBlock, causal=False, **SMALL)
    decoder = drawn(TransformerBlock, **SMALL)
    source, target = keras.Input((None, C)), keras.Input((None, D))
    encoded = encoder(source)
    model = keras.Model([target, source], decoder(target, encoder_output=encoded, return_attention_scores=True))
    random = np.random.default_rng(2)
    for batch_size, length, context_length in ((2, 1, 5), (4, 3, 1)):
        x = random.normal(size=(batch_size, length, D)).astype("float32")
        context = random.normal(size=(batch_size, context_length, C)).astype("float32")
        expected = expected_block(decoder, x, context=expected_block(encoder, context)[0])
        assert_close(run(FAST_MODE, model, [x, context]), expected, 5e-6)


def test_odd_last_batches():
    inputs = keras.Input((None, D))
    model = keras.Model(inputs, layer_of("everything")(inputs))
    x = np.random.default_rng(4).normal(size=(7, 5, D)).astype("float32")
    assert_close(model.predict(x, batch_size=3, verbose=0), expected_block(layer_of("everything"), x)[0], 5e-6)


@pytest.mark.parametrize("option", ["pre_norm", "everything", "encoder", "decoder"])
@pytest.mark.parametrize("length", [0, 1])
def test_very_short_sequences(option, length):
    layer, (x, context, *_) = layer_of(option), example(option)
    inputs = [x[:, :length], context] if "decoder" in option else [x[:, :length]]
    expected, _ = expected_block(layer, inputs[0], context=context if "decoder" in option else None)
    assert_close(run(FAST_MODE, layer, *inputs), expected, 5e-6)


# Errors


@pytest.mark.parametrize(
    ("argument", "shape", "expected"),
    [
        ("attention_mask", (T, T + 1), "(3, 6, 7, 7)"),
        ("attention_mask", (B, 5, T, T), "(3, 6, 7, 7)"),
        ("padding_mask", (B, S), "(3, 7)"),
        ("encoder_padding_mask", (B, T), "(3, 5)"),
        ("encoder_output", (B + 1, S, C), "(3, None, None)"),
    ],
)
def test_a_wrong_shape_is_an_error_that_says_both(argument, shape, expected):
    layer, (x, context, *_) = layer_of("decoder_everything"), example("decoder_everything")
    value = np.ones(shape, "float32" if argument == "encoder_output" else "bool")
    with pytest.raises(ValueError, match=re.escape(expected)) as error:
        layer(x, **{"encoder_output": context, argument: value})
    assert str(shape) in str(error.value)


def test_wrong_calls_are_errors():
    x, context, *_ = example("pre_norm")
    block, decoder, encoder = layer_of("pre_norm"), layer_of("decoder"), layer_of("encoder")
    for call in (lambda: block(x, context), lambda: block.build_cache(B, CACHE, context)):
        with pytest.raises(ValueError, match="built without `encoder_output`"):
            call()
    for call in (lambda: decoder(x), lambda: decoder.build_cache(B, CACHE)):
        with pytest.raises(ValueError, match="needs `encoder_output` or a cache"):
            call()
    for call in (lambda: encoder(x, cache=block.build_cache(B, CACHE)), lambda: encoder.build_cache(B, CACHE)):
        with pytest.raises(ValueError, match="Only a causal block decodes with a cache"):
            call()
    with pytest.raises(ValueError, match="to have value 11"):
        block(np.zeros((B, T, D + 1)))
    with pytest.raises(ValueError, match="expected ndim=3, found ndim=2"):
        TransformerBlock(1)(np.zeros((B, D)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "num_heads=0"),
        ({"num_heads": 4, "num_key_value_heads": 3}, "num_heads=4, num_key_value_heads=3"),
        ({"num_heads": 1, "window_size": -1}, "window_size=-1"),
        ({"num_heads": 1, "intermediate_dim": 0}, "intermediate_dim=0"),
        ({"num_heads": 1, "dropout": 1.0}, "dropout=1.0"),
        ({"num_heads": 1, "rotary": True}, "even size"),
        ({"num_heads": 2}, "width 11, num_heads=2"),
        ({"num_heads": 1, "causal": False, "rotary": True}, "causal=False, rotary=True"),
        ({"num_heads": 1, "causal": False, "window_size": 3}, "causal=False, rotary=False, window_size=3"),
    ],
)
def test_wrong_arguments_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        TransformerBlock(**arguments)(np.zeros((B, T, D)))


# Gradients


@pytest.mark.skipif(BACKEND != "tensorflow", reason="Keras computes in float64 throughout on TensorFlow only")
@pytest.mark.parametrize("mode", sorted({FAST_MODE, LEAN_MODES[-1]}))
def test_gradients_are_those_of_finite_differences(mode):
    # Without rotary heads, whose angles are float32 by contract.
    layer = drawn(TransformerBlock, **{**LARGE, "window_size": 3, "norm_first": False}, dtype="float64")
    layer.build((None, None, D), (None, None, C))
    x, context, padding, context_padding, _ = example("decoder")
    variables = layer.trainable_variables
    point = {"x": x, "context": context, **{variable.path: to_numpy(variable.value) for variable in variables}}
    point = {name: np.array(value, "float64") for name, value in point.items()}

    def function(point, padding, context_padding):
        mapping = [(variable, point[variable.path]) for variable in variables]
        with keras.StatelessScope(state_mapping=mapping):
            masks = {"padding_mask": padding, "encoder_padding_mask": context_padding}
            return keras.ops.sin(layer(point["x"], point["context"], **masks))  # not every place counts alike

    gradients = gradient(mode, function, point, padding, context_padding)

    step, random = 1e-5, np.random.default_rng(3)
    for name, value in point.items():
        direction = random.normal(size=value.shape)
        ends = [
            float64(run("eager", function, {**point, name: value + sign * step * direction}, padding, context_padding))
            for sign in (1, -1)
        ]
        # A central difference is off by about step^2 = 1e-10 times a third derivative, and 1e-16 / step by rounding.
        assert_close((gradients[name] * direction).sum(), (ends[0] - ends[1]).sum() / (2 * step), 1e-7)
