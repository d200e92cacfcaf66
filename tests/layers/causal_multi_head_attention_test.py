"""Every option of the layer in every compile mode, against the sources' equations in NumPy and the laws they imply."""

import re

import keras
import numpy as np
import pytest

from keras_lt.backend import implicit_mask
from keras_lt.layers import CausalMultiHeadAttention
from layer_testing import (
    FAST_MODE,
    LEAN_MODES,
    attention_weights,
    cached,
    causal,
    compile_once,
    drawn,
    float64,
    masking_embedding,
    multi_head_attention,
)
from testing import (
    MODES,
    assert_close,
    gradient,
    needs_jax,
    needs_tensorflow,
    needs_torch,
    run,
    to_numpy,
    weight_gradient,
)

B, T, D, S = 3, 7, 11, 13
SMALL = {"num_heads": 5, "head_dim": 2}
GROUPED = {"num_heads": 6, "head_dim": 4, "num_key_value_heads": 2}
OPTIONS = {
    "plain": SMALL,
    "biases": {**SMALL, "use_bias": True},
    "one_head": {"num_heads": 1, "head_dim": 5},
    "heads_of_size_1": {"num_heads": 5, "head_dim": 1},
    "grouped": GROUPED,
    "one_key_head": {**SMALL, "num_key_value_heads": 1},
    "window": {**SMALL, "window_size": 3},
    "rotary": {**SMALL, "rotary": True},
    "dropout": {**SMALL, "dropout": 0.4},
    "everything": {**GROUPED, "use_bias": True, "window_size": 3, "rotary": True, "dropout": 0.4},
}
POLICIES = ["float16", "bfloat16", "mixed_float16", "mixed_bfloat16"]
RESULTS = ("plain", "masked", "scored")

every_mode = pytest.mark.parametrize("mode", LEAN_MODES)


def options_and_modes(options, modes=LEAN_MODES, eager_options=OPTIONS):
    pairs = [
        (name, mode) for name in OPTIONS for mode in modes if name in (eager_options if mode == "eager" else options)
    ]
    return pytest.mark.parametrize(("option", "mode"), pairs)


# One head, or heads of size 1, are no options of their own.
every_option_and_mode = options_and_modes([name for name in OPTIONS if "head" not in name or "key" in name])


@cached
def layer_of(option, dtype="float32"):
    layer = drawn(CausalMultiHeadAttention, **OPTIONS[option], dtype=dtype)
    layer.build((None, None, D))
    return layer


@cached
def results_of(option, mode, dtype="float32"):
    """The layer as a function of inputs and two masks: without them, with them, with them and scores."""
    layer = layer_of(option, dtype)

    def function(x, padding, attention_mask):
        masks = {"padding_mask": padding, "attention_mask": attention_mask}
        scored, scores = layer(x, return_attention_scores=True, **masks)
        return {"plain": layer(x), "masked": layer(x, **masks), "scored": scored, "scores": scores}

    return compile_once(mode, function, *example(option))


def example(option, seed=0):
    """Inputs, a padding mask and an attention mask of rank 4; the first row starts with padding."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(B, T, D)).astype("float32")
    padding = random.random((B, T)) < 0.8
    padding[0, :2], padding[1] = False, True
    return x, padding, random.random((B, OPTIONS[option]["num_heads"], T, T)) < 0.7


def expected_attention(layer, queries, context, visible, start=0):
    """The oracle for queries at positions `start`, ... and keys at 0, 1, ..."""
    visible = visible & causal(queries.shape[1], context.shape[1], start, layer.window_size)
    positions = (start + np.arange(queries.shape[1]), np.arange(context.shape[1])) if layer.rotary else ()
    return multi_head_attention(attention_weights(layer), queries, context, visible, *positions)


# Values


@every_option_and_mode
def test_values_are_those_of_the_equations(option, mode):
    check_values(option, mode)


@needs_jax
@pytest.mark.parametrize("option", ["plain", "everything"])
def test_values_in_eager_mode(option):
    check_values(option, "eager")


def check_values(option, mode):
    layer, (x, padding, attention_mask) = layer_of(option), example(option)
    visible = attention_mask & padding[:, None, None, :]

    results = results_of(option, mode)(x, padding, attention_mask)

    assert_close(results["plain"], expected_attention(layer, float64(x), float64(x), np.array(True))[0])
    masked, scores = expected_attention(layer, float64(x), float64(x), visible)
    for name, expected in (("masked", masked), ("scored", masked), ("scores", scores)):
        assert_close(results[name], expected)
    assert (results["scores"][~(visible & causal(T, T, 0, layer.window_size))] == 0).all()


@every_mode
def test_masks_of_every_rank(mode):
    layer, (x, padding, _) = layer_of("everything"), example("everything")
    random = np.random.default_rng(5)
    shapes = [(T, T), (B, T, T), (B, 1, T, T), (1, 6, T, T)]
    masks = [random.random(shape) < 0.7 for shape in shapes]

    def function(x, padding, *masks):
        return [*(layer(x, attention_mask=mask) for mask in masks), layer(x, padding_mask=padding)]

    results = run(mode, function, x, padding, *masks)

    visible = [mask[:, None] if mask.ndim == 3 else mask for mask in masks] + [padding[:, None, None]]
    for result, seen in zip(results, visible, strict=True):
        assert_close(result, expected_attention(layer, float64(x), float64(x), seen)[0])


@needs_torch
def test_equals_pytorch():
    import torch

    layer, (x, *_) = layer_of("plain"), example("plain")
    query, key, value = (
        torch.einsum("btd,ndh->bnth", torch.tensor(x), torch.tensor(float64(kernel)).float())
        for kernel in (layer.query_kernel, layer.key_kernel, layer.value_kernel)
    )
    context = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    merged = context.permute(0, 2, 1, 3).reshape(B, T, -1)  # S3's `merged`
    projection = torch.tensor(float64(layer.output_kernel)).float().reshape(-1, D)  # S3's `proj`

    assert_close(layer(x), (merged @ projection).numpy())


def test_defaults_are_the_sources():
    layer = drawn(CausalMultiHeadAttention, num_heads=3)
    layer.build((None, None, 15))
    assert tuple(layer.query_kernel.shape) == (3, 15, 5)
    assert tuple(layer.output_kernel.shape) == (3, 5, 15)
    assert layer.count_params() == 4 * 15 * 15


def test_views_have_the_shapes_of_the_sources():
    layer = layer_of("grouped")
    shapes = [layer.query_kernel.shape, layer.key_kernel.shape, layer.value_kernel.shape, layer.output_kernel.shape]
    assert [tuple(shape) for shape in shapes] == [(6, D, 4), (2, D, 4), (2, D, 4), (6, 4, D)]


@pytest.mark.parametrize("options", [{}, {"num_key_value_heads": 2}], ids=["plain", "grouped"])
def test_weights_exist_after_build(options):
    layer = drawn(CausalMultiHeadAttention, num_heads=6, use_bias=True, dropout=0.2, **options)
    layer.build((None, None, 18))
    before = [variable.path for variable in layer.variables]

    run(FAST_MODE, lambda x: layer(x, return_attention_scores=True, training=True), np.zeros((2, 3, 18)))

    assert [variable.path for variable in layer.variables] == before
    heads = 6 + 2 * options.get("num_key_value_heads", 6)
    assert layer.count_params() == 18 * heads * 3 + heads * 3 + 6 * 3 * 18 + 18


# Causality


@every_option_and_mode
def test_later_inputs_change_nothing(option, mode):
    function, (x, *masks) = results_of(option, mode), example(option)
    before = function(x, *masks)
    for t in (0, 3, 5):
        changed = x.copy()
        changed[:, t + 1 :] = 1e3 * np.random.default_rng(t).normal(size=(B, T - t - 1, D))
        after = function(changed, *masks)
        for name in RESULTS:
            np.testing.assert_array_equal(after[name][:, : t + 1], before[name][:, : t + 1])
        np.testing.assert_array_equal(after["scores"][:, :, : t + 1], before["scores"][:, :, : t + 1])
        assert (after["plain"][:, t + 1 :] != before["plain"][:, t + 1 :]).any()


@every_mode
def test_later_inputs_change_nothing_in_training(mode):
    layer, (x, padding, _) = layer_of("everything"), example("everything")
    state = layer.dropout_layer.seed_generator.state
    start = np.array(to_numpy(state.value))

    def restart():
        state.assign(start)
        keras.utils.set_random_seed(3)  # what dropout draws from on PyTorch

    def train(x, padding):
        scored, _ = layer(x, padding_mask=padding, return_attention_scores=True, training=True)
        return {"plain": layer(x, training=True), "scored": scored, "inference": layer(x)}

    function = compile_once(mode, train, x, padding)
    restart()
    before = function(x, padding)
    for t in (0, 4):
        changed = x.copy()
        changed[:, t + 1 :] += 100
        restart()
        after = function(changed, padding)
        for name in ("plain", "scored"):
            np.testing.assert_array_equal(after[name][:, : t + 1], before[name][:, : t + 1])
    assert (before["plain"] != before["inference"]).any()


@pytest.mark.parametrize(
    ("dtype", "mode"), [(d, m) for d in POLICIES for m in LEAN_MODES if m == LEAN_MODES[-1] or d == "mixed_float16"]
)
def test_low_precision_is_causal_finite_and_near(dtype, mode):
    layer, reference = layer_of("everything", dtype), layer_of("everything")
    for own, other in zip(layer.weights, reference.weights, strict=True):
        own.assign(other.value)
    function, (x, *masks) = results_of("everything", mode, dtype), example("everything")
    before = function(x, *masks)
    changed = x.copy()
    changed[:, 4:] *= 100

    after = function(changed, *masks)

    exact = results_of("everything", mode)(x, *masks)
    for name in RESULTS:
        np.testing.assert_array_equal(after[name][:, :4], before[name][:, :4])
        assert np.isfinite(float64(after[name])).all()
        assert keras.backend.standardize_dtype(before[name].dtype) == layer.compute_dtype
        # 11 and 8 bits of mantissa, in outputs of size 2
        assert_close(before[name], exact[name], 0.01 if "bfloat" not in dtype else 0.08)
    bias = keras.ops.cast(layer.output_projection.bias, layer.compute_dtype)
    np.testing.assert_array_equal(before["masked"][0, :2], np.broadcast_to(to_numpy(bias), (2, D)))


# Padding


@every_option_and_mode
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing_at_real_positions(option, mode, side):
    layer, (x, _, attention_mask) = layer_of(option), example(option)
    lengths = np.array([[4], [7], [1]])
    padding = np.arange(T) < lengths if side == "right" else np.arange(T) >= T - lengths
    changed = np.where(padding[..., None], x, 50 * np.random.default_rng(1).normal(size=x.shape)).astype("float32")
    function = results_of(option, mode)

    before, after = function(x, padding, attention_mask), function(changed, padding, attention_mask)

    for name in ("masked", "scored"):
        np.testing.assert_array_equal(after[name][padding], before[name][padding])
    for row, real in enumerate(padding):
        alone, mask = float64(x[row : row + 1, real]), attention_mask[row : row + 1][:, :, real][..., real]
        assert_close(before["masked"][row : row + 1, real], expected_attention(layer, alone, alone, mask)[0])


@every_option_and_mode
def test_empty_rows_are_the_output_bias(option, mode):
    layer, (x, padding, attention_mask) = layer_of(option), example(option)
    padding[:], attention_mask[:] = True, True
    padding[0, :3], padding[2], attention_mask[1, :, 4] = False, False, False

    results = results_of(option, mode)(x, padding, attention_mask)

    bias = to_numpy(layer.output_projection.bias.value) if layer.use_bias else np.zeros(D, "float32")
    for name in ("masked", "scored"):
        for empty in (results[name][0, :3], results[name][2], results[name][1, 4:5]):
            np.testing.assert_array_equal(empty, np.broadcast_to(bias, empty.shape))
    for empty in (results["scores"][0, :, :3], results["scores"][2], results["scores"][1, :, 4]):
        assert (empty == 0).all()


@every_mode
@pytest.mark.parametrize("scores", [False, True])
def test_empty_rows_have_zero_gradients(scores, mode):
    layer, (x, padding, _) = layer_of("everything", "mixed_float16" if scores else "float32"), example("everything")
    padding[:] = True
    padding[0], padding[1, :4] = False, False

    def function(x, padding):
        output = layer(x, padding_mask=padding, return_attention_scores=scores)
        return output[0] if scores else output

    by_input = gradient(mode, function, x, padding)

    np.testing.assert_array_equal(by_input[0], np.zeros((T, D)))
    np.testing.assert_array_equal(by_input[1, :4], np.zeros((4, D)))
    assert np.isfinite(by_input).all()
    assert (by_input[2] != 0).all()
    # The weights' gradients come out of the same backward pass: one mode is enough.
    if mode != LEAN_MODES[0]:
        return
    by_weight = weight_gradient(mode, layer, function, x[:1], padding[:1])
    for variable, value in zip(layer.trainable_variables, by_weight, strict=True):
        is_output_bias = variable.path == layer.output_projection.bias.path
        np.testing.assert_array_equal(value, np.full(variable.shape, T if is_output_bias else 0.0))


@every_mode
def test_implicit_and_explicit_masks_both_count(mode):
    layer, (x, *_) = layer_of("plain"), example("plain")
    first, second, both = (np.ones((B, T), bool) for _ in range(3))
    first[:, 1] = second[:, 3] = both[:, 1] = both[:, 3] = False

    def function(x, first, second, both):
        masked = [layer(x, mask=first, padding_mask=second), layer(x, inputs_mask=first, padding_mask=second)]
        return [*masked, layer(x, mask=first, inputs_mask=second), layer(x, padding_mask=both)]

    *masked, expected = run(mode, function, x, first, second, both)
    for result in masked:
        np.testing.assert_array_equal(result, expected)


class Masked(keras.Model):
    """The subclass form of the models below."""

    def __init__(self, embedding, layer):
        super().__init__()
        self.embedding, self.layer = embedding, layer

    def call(self, token_ids, attention_mask=None):
        return self.layer(self.embedding(token_ids), attention_mask=attention_mask)


def masked_model(form, embedding, layer, with_attention_mask):
    """Ids, masked where they are 0, through the layer, in one of Keras's three forms of a model."""
    if form == "subclass":
        return Masked(embedding, layer)
    if form == "sequential":
        return keras.Sequential([keras.Input((None,), dtype="int32"), embedding, layer])
    inputs = [keras.Input((None,), dtype="int32")]
    if not with_attention_mask:
        return keras.Model(inputs[0], layer(embedding(inputs[0])))
    inputs.append(keras.Input((None, None), dtype="bool"))
    return keras.Model(inputs, layer(embedding(inputs[0]), attention_mask=inputs[1]))


@every_mode
@pytest.mark.parametrize(
    ("form", "with_attention_mask"),
    [("functional", False), ("functional", True), ("sequential", False), ("subclass", False), ("subclass", True)],
)
def test_implicit_mask_of_an_embedding(form, with_attention_mask, mode):
    layer = layer_of("everything")
    embedding = masking_embedding(17, D)
    model = masked_model(form, embedding, layer, with_attention_mask)
    real = np.array([[3, 16, 2, 5]])
    attention_mask = np.random.default_rng(2).random((1, 4, 4)) < 0.7
    attention_mask |= np.eye(4, dtype=bool)
    x = float64(embedding.embeddings)[real]
    alone, _ = expected_attention(layer, x, x, attention_mask if with_attention_mask else np.array(True))

    def call(token_ids, attention_mask):
        if form == "subclass":
            return model(token_ids, attention_mask=attention_mask if with_attention_mask else None)
        return model([token_ids, attention_mask] if with_attention_mask else token_ids)

    function = compile_once(mode, call, np.zeros((1, 7), "int32"), np.ones((1, 7, 7), bool))
    for place in (slice(3, 7), slice(0, 4), slice(1, 5)):
        padded, padded_mask = np.zeros((1, 7), "int32"), np.ones((1, 7, 7), bool)
        padded[:, place], padded_mask[:, place, place] = real, attention_mask
        output = function(padded, padded_mask)
        assert_close(output[:, place], alone)
        bias = to_numpy(layer.output_projection.bias.value)
        np.testing.assert_array_equal(output[0, : place.start], np.broadcast_to(bias, (place.start, D)))


def test_the_mask_goes_on_to_the_next_layer():
    token_ids = np.array([[3, 4, 0, 0, 0]])
    x = masking_embedding(17, D)(token_ids)
    output, _ = layer_of("plain")(x, return_attention_scores=True)
    np.testing.assert_array_equal(to_numpy(implicit_mask(output)), token_ids != 0)


# Window


@every_mode
@pytest.mark.parametrize("option", ["window", "everything"])
def test_padding_of_a_text_of_many_windows(option, mode):
    """Where no attention mask is given and no scores are asked for, it is computed in blocks."""
    layer, random = layer_of(option), np.random.default_rng(7)
    x, mask = random.normal(size=(B, 17, D)).astype("float32"), np.ones((2, B, 17), bool)
    mask[0, 0, :6], mask[0, 1, 13:], mask[1, 2, 4:9] = False, False, False

    def function(x, mask, padding_mask):
        return layer(x, mask=mask, padding_mask=padding_mask), layer(x, inputs_mask=padding_mask), layer(x)

    results = run(mode, function, x, *mask)

    for result, visible in zip(results, [mask.all(axis=0), mask[1], np.ones_like(mask[0])], strict=True):
        assert_close(result, expected_attention(layer, float64(x), float64(x), visible[:, None, None])[0])
    bias = to_numpy(layer.output_projection.bias.value) if layer.use_bias else np.zeros(D, "float32")
    np.testing.assert_array_equal(results[0][0, :6], np.broadcast_to(bias, (6, D)))
    np.testing.assert_array_equal(results[0][2, 6:9], np.broadcast_to(bias, (3, D)))


@every_mode
def test_dropout_drops_its_share_of_each_block(mode):
    ones = keras.initializers.Constant(0.5)
    layer = CausalMultiHeadAttention(1, window_size=2, dropout=0.4, seed=11, kernel_initializer=ones)
    layer.build((None, None, 2))
    x = np.ones((1500, 5, 2), "float32")

    plain, dropped = run(mode, lambda x: (layer(x), layer(x, training=True)), x)

    # All keys are alike, and every output is 1 times the share of the weights that is kept, over 0.6.
    assert_close(plain, np.ones_like(x))
    kept = dropped[..., 0] * 0.6
    assert_close(kept, np.round(2 * kept) / 2)
    for t, shares in enumerate([{0: 0.4, 1: 0.6}] + [{0: 0.16, 0.5: 0.48, 1: 0.36}] * 4):
        for value, share in shares.items():
            assert abs(np.isclose(kept[:, t], value).mean() - share) < 0.06  # 4.5 standard deviations
    assert abs(np.corrcoef(kept[:, 2], kept[:, 4])[0, 1]) < 0.12  # the blocks drop differently


@needs_tensorflow
@pytest.mark.parametrize("mode", ["graph", "jit"])
def test_a_window_on_texts_of_unknown_length(mode):
    import tensorflow as tf

    layer = layer_of("everything")
    signature = [tf.TensorSpec((None, None, D)), tf.TensorSpec((None, None), "bool")]
    function = tf.function(
        lambda x, mask: layer(x, padding_mask=mask), input_signature=signature, jit_compile=mode == "jit"
    )
    for length in (0, 1, 3, 17):
        x, *_ = example("everything")
        x, mask = np.resize(x, (B, length, D)), np.ones((B, length), bool)
        mask[0, :2] = False
        expected, _ = expected_attention(layer, float64(x), float64(x), mask[:, None, None])
        assert_close(function(x, mask), expected)


# Cache


@cached
def step_of(option, mode):
    layer = layer_of(option)

    def step(x, cache, start_index):
        return layer(x, cache=cache, start_index=start_index)

    x = np.zeros((B, 1, D), "float32")
    return compile_once(mode, step, x, to_numpy(layer.build_cache(B, S)), np.zeros(B, "int32"))


@options_and_modes(["plain", "everything"])
def test_cached_decoding_equals_the_uncached_pass(option, mode):
    layer, step, (x, *_) = layer_of(option), step_of(option, mode), example(option)
    expected, _ = expected_attention(layer, float64(x), float64(x), np.array(True))
    rows = np.arange(B)[:, None]
    cache = to_numpy(layer.build_cache(B, S))
    # A chunk of 3 of which row b keeps 1, 2, 3; then single tokens, each row at its own place; then a chunk again.
    chunks = [(np.zeros(B, "int32"), 3)]
    chunks += [(np.array([1, 2, 3], "int32") + number, 1) for number in range(3)]
    chunks += [(np.array([4, 4, 4], "int32"), 3)]
    for starts, length in chunks:
        places = starts[:, None] + np.arange(length)
        output, cache = step(x[rows, places], cache, starts)
        assert_close(output, expected[rows, places])


@every_mode
def test_cached_masks_speak_of_the_keys_of_the_cache(mode):
    layer = layer_of("everything")
    x, padding, *_ = example("everything")
    random = np.random.default_rng(5)
    masks = [random.random(shape) < 0.7 for shape in ((2, S), (B, 2, S), (B, 6, 2, S))]
    long_padding = np.pad(padding, ((0, 0), (0, S - T)), constant_values=True)

    def function(x, padding, *masks):
        _, cache = layer(x[:, :5], cache=layer.build_cache(B, S))
        results = []
        for mask in masks:
            arguments = {"cache": cache, "start_index": 5, "padding_mask": padding, "attention_mask": mask}
            results.append(layer(x[:, 5:], **arguments)[0])
        return results, layer(x[:, 5:], return_attention_scores=True, **arguments)

    results, (scored, scores, _) = run(mode, function, x, long_padding, *masks)

    for mask, result in zip(masks, results, strict=True):
        mask = mask[:, None] if mask.ndim == 3 else mask
        visible = padding[:, None, None] & mask[..., :T]
        expected, expected_scores = expected_attention(layer, float64(x[:, 5:]), float64(x), visible, start=5)
        assert_close(result, expected)
    assert_close(scored, expected)
    assert_close(scores[..., :T], expected_scores)
    assert (scores[..., T:] == 0).all()


@every_mode
def test_implicit_mask_with_a_cache_speaks_of_the_new_tokens(mode):
    layer, (x, *_) = layer_of("plain"), example("plain")
    mask = np.ones((B, 3), bool)
    mask[:, 1] = False
    padding = np.ones((B, T), bool)
    padding[:, 5] = False

    def function(x, mask):
        _, cache = layer(x[:, :4], cache=layer.build_cache(B, S))
        return layer(x[:, 4:], mask=mask, cache=cache, start_index=4)[0]

    expected, _ = expected_attention(layer, float64(x), float64(x), padding[:, None, None])
    assert_close(run(mode, function, x, mask), expected[:, 4:])


@pytest.mark.parametrize("start", [11, -1, np.array([0, 11, 2]), np.array([4, 0, -3])])
def test_eager_positions_outside_the_cache_are_an_error(start):
    layer, (x, *_) = layer_of("plain"), example("plain")
    with pytest.raises(ValueError, match=r"cache holds 13 positions. Received: 3 new ones"):
        layer(x[:, :3], cache=layer.build_cache(B, S), start_index=start)


@pytest.mark.skipif(MODES == ["eager"], reason="this backend compiles nothing here")
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "eager"])
@pytest.mark.parametrize("option", ["plain", "everything"])
def test_compiled_positions_outside_the_cache_are_nan(option, mode):
    layer, (x, *_) = layer_of(option), example(option)
    starts = np.array([11, 4, -2], "int32")

    output, cache = step_of(option, mode)(x[:, :3], to_numpy(layer.build_cache(B, S)), starts)

    places = starts[:, None] + np.arange(3)
    outside = (places < 0) | (places >= S)
    np.testing.assert_array_equal(np.isnan(output), np.broadcast_to(outside[..., None], output.shape))
    assert all(np.isfinite(values).all() for values in cache.values())


def test_the_cache_has_the_compute_dtype():
    layer = layer_of("grouped", "mixed_bfloat16")
    cache = layer.build_cache(5, S)
    for value in cache.values():
        assert tuple(value.shape) == (5, 2, S, 4)
        assert keras.backend.standardize_dtype(value.dtype) == "bfloat16"


@pytest.mark.parametrize("option", ["plain", "everything"])
def test_start_index_alone_changes_nothing(option):
    layer, (x, *_) = layer_of(option), example(option)
    # Angles of larger positions are rounded more coarsely; their differences are what counts.
    assert_close(layer(x, start_index=3), to_numpy(layer(x)))
    assert_close(layer(x, start_index=np.array([3, 0, 5])), to_numpy(layer(x)))


# Shapes


@pytest.mark.parametrize(
    ("argument", "shape", "expected"),
    [
        ("attention_mask", (T,), "(3, 5, 7, 7)"),
        ("attention_mask", (T, T + 1), "(3, 5, 7, 7)"),
        ("attention_mask", (T + 1, T), "(3, 5, 7, 7)"),
        ("attention_mask", (1, T), "(3, 5, 7, 7)"),
        ("attention_mask", (B + 1, T, T), "(3, 5, 7, 7)"),
        ("attention_mask", (B, 4, T, T), "(3, 5, 7, 7)"),
        ("attention_mask", (B, 1, 1, T, T), "(3, 5, 7, 7)"),
        ("padding_mask", (T,), "(3, 7)"),
        ("padding_mask", (B, T + 1), "(3, 7)"),
        ("padding_mask", (B + 1, T), "(3, 7)"),
        ("padding_mask", (B, 1, T), "(3, 7)"),
        ("mask", (B, T + 1), "(3, 7)"),
    ],
)
def test_a_wrong_shape_is_an_error_that_says_both(argument, shape, expected):
    layer, (x, *_) = layer_of("plain"), example("plain")
    with pytest.raises(ValueError, match=re.escape(expected)) as error:
        layer(x, **{argument: np.ones(shape, bool)})
    assert f"{argument}.shape={shape}" in str(error.value)


@pytest.mark.parametrize("shape", [(B + 1, 2, S, 4), (1, 2, S, 4), (B, 6, S, 4), (B, 2, S, 5), (B, S, 8)])
def test_a_wrong_cache_is_an_error(shape):
    layer, (x, *_), cache = layer_of("grouped"), example("grouped"), np.zeros(shape, "float32")
    with pytest.raises(ValueError, match=re.escape("(3, 2, None, 4)")) as error:
        layer(x, cache={"key": cache, "value": cache})
    assert str(shape) in str(error.value)


def test_a_wrong_start_index_is_an_error():
    layer, (x, *_) = layer_of("plain"), example("plain")
    for start in (np.arange(B + 1), np.zeros((B, 1), "int32")):
        with pytest.raises(ValueError, match=r"`start_index` must have the shape \(\) or \(3,\)"):
            layer(x, cache=layer.build_cache(B, S), start_index=start)


def test_a_float_attention_mask_is_refused_and_integers_are_not():
    layer, (x, *_, mask) = layer_of("plain"), example("plain")
    for dtype in ("float32", "float64", "float16"):
        with pytest.raises(ValueError, match="must be boolean"):
            layer(x, attention_mask=mask.astype(dtype))
    for dtype in ("int32", "int8", "uint8"):
        assert_close(layer(x, attention_mask=mask.astype(dtype)), to_numpy(layer(x, attention_mask=mask)), 0)


@pytest.mark.parametrize("option", ["plain", "grouped", "everything"])
def test_symbolic_results_have_the_real_shapes(option):
    layer = layer_of(option)
    num_key_heads, head_dim = layer.num_key_value_heads or layer.num_heads, layer.head_dim
    calls = [{}, {"return_attention_scores": True}, {"cache": True}, {"cache": True, "return_attention_scores": True}]

    def every_call(x, cache):
        return [layer(x, **{**call, **({"cache": cache} if "cache" in call else {})}) for call in calls]

    cache_shape = (B, num_key_heads, S, head_dim)
    cache = {"key": np.zeros(cache_shape, "float32"), "value": np.zeros(cache_shape, "float32")}
    real = run(FAST_MODE, every_call, np.zeros((B, 2, D), "float32"), cache)

    for batch_size, length in ((None, None), (B, 2), (None, 2)):
        cache = {name: keras.Input(batch_shape=(batch_size, *cache_shape[1:])) for name in cache}
        symbolic = every_call(keras.Input(batch_shape=(batch_size, length, D)), cache)
        keras.tree.assert_same_structure(symbolic, real)
        for one, other in zip(keras.tree.flatten(symbolic), keras.tree.flatten(real), strict=True):
            assert all(size in (None, actual) for size, actual in zip(one.shape, other.shape, strict=True))
            assert one.dtype == keras.backend.standardize_dtype(other.dtype)
    assert layer.compute_output_shape((B, 2, D)) == real[0].shape


def test_functional_model_with_scores_on_any_length():
    layer, inputs = drawn(CausalMultiHeadAttention, **OPTIONS["everything"]), keras.Input((None, D))
    model = keras.Model(inputs, layer(inputs, return_attention_scores=True))
    for batch_size, length in ((2, 1), (5, 3)):
        x = np.random.default_rng(3).normal(size=(batch_size, length, D)).astype("float32")
        assert_close(run(FAST_MODE, model, x), expected_attention(layer, float64(x), float64(x), np.array(True)))


def test_functional_model_with_a_cache():
    layer = drawn(CausalMultiHeadAttention, **GROUPED)
    cache = {name: keras.Input((2, S, 4), name=name) for name in ("key", "value")}
    x, start_index = keras.Input((None, D)), keras.Input((), dtype="int32")
    model = keras.Model([x, start_index, cache], layer(x, cache=cache, start_index=start_index))
    x, *_ = example("grouped")
    cache = {name: np.zeros((B, 2, S, 4), "float32") for name in cache}

    _, cache = run(FAST_MODE, model, [x[:, :5], np.zeros(B, "int32"), cache])
    output, _ = run(FAST_MODE, model, [x[:, 5:], np.full(B, 5, "int32"), cache])

    assert_close(output, expected_attention(layer, float64(x), float64(x), np.array(True))[0][:, 5:])


def test_odd_last_batches():
    inputs = keras.Input((None, D))
    model = keras.Model(inputs, layer_of("everything")(inputs))
    x = np.random.default_rng(4).normal(size=(7, 5, D)).astype("float32")
    expected, _ = expected_attention(layer_of("everything"), float64(x), float64(x), np.array(True))
    assert_close(model.predict(x, batch_size=3, verbose=0), expected)


@pytest.mark.parametrize("option", ["plain", "grouped", "everything"])
@pytest.mark.parametrize("length", [0, 1])
def test_very_short_sequences(option, length):
    layer, x = layer_of(option), np.ones((B, length, D), "float32")
    output, scores = layer(x, return_attention_scores=True)
    assert tuple(output.shape) == tuple(layer(x).shape) == (B, length, D)
    assert_close(scores, np.ones((B, layer.num_heads, length, length)))


def test_another_width_or_rank_than_built_is_an_error():
    with pytest.raises(ValueError, match="expected axis -1 of input shape to have value 11"):
        layer_of("plain")(np.zeros((2, 3, D + 1)))
    with pytest.raises(ValueError, match="expected ndim=3, found ndim=2"):
        CausalMultiHeadAttention(2)(np.zeros((3, 4)))


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_heads": 0}, "`num_heads` must be a positive integer. Received: num_heads=0"),
        ({"num_heads": 2.0}, "num_heads=2.0"),
        ({"num_heads": "2"}, "num_heads='2'"),
        ({"num_heads": True}, "num_heads=True"),
        ({"num_heads": 4, "num_key_value_heads": 3}, "num_heads=4, num_key_value_heads=3"),
        ({"num_heads": 2, "num_key_value_heads": 4}, "num_heads=2, num_key_value_heads=4"),
        ({"num_heads": 4, "num_key_value_heads": 0}, "num_key_value_heads=0"),
        ({"num_heads": 4, "head_dim": -2}, "head_dim=-2"),
        ({"num_heads": 4, "window_size": 0}, "window_size=0"),
        ({"num_heads": 4, "window_size": -3}, "window_size=-3"),
        ({"num_heads": 4, "dropout": 1.0}, "dropout=1.0"),
        ({"num_heads": 4, "dropout": -0.1}, "dropout=-0.1"),
        ({"num_heads": 4, "head_dim": 3, "rotary": True}, "even size. Received: head_dim=3"),
    ],
)
def test_wrong_arguments_are_errors_that_say_what_came(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        CausalMultiHeadAttention(**arguments)


def test_widths_that_do_not_fit_are_errors():
    with pytest.raises(ValueError, match="width 11, num_heads=5"):
        CausalMultiHeadAttention(5)(np.zeros((2, 3, D)))
    for inputs in (np.zeros((2, 3, 6)), keras.Input((None, 6))):
        with pytest.raises(ValueError, match="even size"):
            CausalMultiHeadAttention(2, rotary=True)(inputs)


# Dropout


@every_mode
def test_dropout_drops_its_share_and_scales_the_rest(mode):
    layer = drawn(CausalMultiHeadAttention, 1, head_dim=3, dropout=0.4, seed=11)
    layer.build((None, None, 5))
    x = np.random.default_rng(6).normal(size=(2000, 1, 5)).astype("float32")

    def function(x):
        return layer(x), layer(x, training=True), *layer(x, training=True, return_attention_scores=True)

    plain, dropped, scored, scores = run(mode, function, x)

    assert_close(scores, np.ones((2000, 1, 1, 1)))
    for result in (dropped, scored):
        gone = (result == 0).all(axis=(1, 2))
        # One key with weight 1: its value is there, scaled, or it is not. 0.05 is 4.5 standard deviations.
        assert abs(gone.mean() - 0.4) < 0.05
        assert_close(result[~gone], plain[~gone] / 0.6)
    assert ((dropped == 0) != (scored == 0)).any()
