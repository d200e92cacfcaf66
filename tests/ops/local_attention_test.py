"""Attention in blocks against the sum over the nearest keys, query by query, in NumPy."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_lt.ops import attend, attention_weights, dot_product_attention, local_attention
from testing import BACKEND, MODES, assert_close, gradient, needs_jax, needs_tensorflow, run

B, H = 3, 5
HEADS = {"one key head a query head": (2, 2), "grouped": (6, 2), "one key head": (4, 1)}  # N, K
# On JAX eager mode runs what jit runs, with each operation compiled alone: one test there is enough.
LEAN_MODES = [mode for mode in MODES if (BACKEND, mode) != ("jax", "eager")]
# Lengths and windows: no multiple, a multiple, one block, a window as long as the text, a longer one, the least
LENGTHS = [(13, 3), (12, 4), (7, 5), (6, 6), (5, 8), (4, 1), (1, 1)]


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


def tensors(length, num_heads=6, num_key_value_heads=2, batch=B):
    shape = (batch, num_key_value_heads, length, H)
    return normal(batch, num_heads, length, H), normal(*shape, seed=1), normal(*shape, seed=2)


def expected_context(query, key, value, window_size, padding_mask=None):
    """Each query alone, in float64: its nearest real keys, their weights, the sum of their values."""
    query, key, value = (x.astype("float64") for x in (query, key, value))
    context, group = np.zeros(query.shape), query.shape[1] // key.shape[1]
    for b, n, t in np.ndindex(query.shape[:3]):
        seen = [s for s in range(t + 1) if s > t - window_size and (padding_mask is None or padding_mask[b, s])]
        if seen:
            scores = np.array([query[b, n, t] @ key[b, n // group, s] for s in seen]) / np.sqrt(query.shape[3])
            weights = np.exp(scores - scores.max())
            context[b, n, t] = weights / weights.sum() @ value[b, n // group, seen]
    return context


def paddings(length):
    """Masks `(B, T)`: padding on the left and right, inside, and a row of nothing else, longer than a window."""
    sides, inside = np.ones((2, B, length), bool)
    sides[0, : length // 2], sides[1, -(length // 3) :], sides[2] = False, False, False
    inside[0, 1], inside[1, length // 3 : -2], inside[2, -1] = False, False, False
    return [sides, inside]


@pytest.mark.parametrize("mode", LEAN_MODES)
def test_values_for_every_length_and_window(mode):
    arguments = [(*tensors(length), window_size) for length, window_size in LENGTHS]
    results = run(mode, lambda arguments: [local_attention(*each) for each in arguments], arguments)
    for each, result in zip(arguments, results, strict=True):
        assert_close(result, expected_context(*each))


@pytest.mark.parametrize("mode", MODES[-1:])
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_values_for_every_grouping_of_heads(heads, mode):
    query, key, value = tensors(11, *heads)
    assert_close(run(mode, local_attention, query, key, value, 4), expected_context(query, key, value, 4))


@pytest.mark.parametrize("mode", MODES)
def test_padding_on_every_side_and_queries_that_see_nothing(mode):
    length, window_size = 13, 3
    arrays, masks = tensors(length), paddings(length)

    def function(arrays, masks):
        return [local_attention(*arrays, window_size, mask) for mask in masks]

    results = run(mode, function, arrays, [masks[0], masks[1].astype("int32")])

    for mask, result in zip(masks, results, strict=True):
        expected = expected_context(*arrays, window_size, mask)
        assert_close(result, expected)
        empty = (expected == 0).all(axis=(1, 3))
        assert empty.any()
        assert (result.swapaxes(1, 2)[empty] == 0).all()


@pytest.mark.parametrize("mode", LEAN_MODES)
def test_what_lies_outside_the_window_changes_nothing(mode):
    window_size, place = 4, 5
    query, key, value = tensors(14)
    other_key, other_value = key.copy(), value.copy()
    other_key[:, :, place], other_value[:, :, place] = 1e3, -1e3

    before, after = run(
        mode,
        lambda arrays: [local_attention(*each, window_size) for each in arrays],
        [(query, key, value), (query, other_key, other_value)],
    )

    seen = slice(place, place + window_size)
    assert (after[:, :, seen] != before[:, :, seen]).any(axis=(1, 3)).all()
    after[:, :, seen] = before[:, :, seen]
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("mode", MODES[-1:])
def test_gradient_equals_finite_differences(mode):
    arrays = {"query": normal(1, 2, 5, 3), "key": normal(1, 1, 5, 3, seed=1), "value": normal(1, 1, 5, 3, seed=2)}
    direction, window_size, step = normal(1, 2, 5, 3, seed=3), 2, 1e-4
    expected = {}
    for name in arrays:
        expected[name] = np.zeros(arrays[name].shape)
        for index in np.ndindex(arrays[name].shape):
            ends = []
            for sign in (1, -1):
                moved = {other: array.astype("float64") for other, array in arrays.items()}
                moved[name][index] += sign * step
                ends.append((expected_context(**moved, window_size=window_size) * direction).sum())
            expected[name][index] = (ends[0] - ends[1]) / (2 * step)

    def function(arrays, direction):
        return local_attention(**arrays, window_size=window_size) * direction

    assert_close(gradient(mode, function, arrays, direction), expected)


@pytest.mark.parametrize("mode", MODES[-1:])
def test_queries_that_see_nothing_have_zero_gradients(mode):
    arrays, mask = tensors(13), paddings(13)[0]
    by_query, *by_keys = gradient(mode, lambda arrays, mask: local_attention(*arrays, 3, mask), arrays, mask)
    empty = (expected_context(*arrays, 3, mask) == 0).all(axis=(1, 3))
    assert (by_query.swapaxes(1, 2)[empty] == 0).all()
    assert (by_query.swapaxes(1, 2)[~empty] != 0).any(axis=(1, 2)).sum() > 6
    for slope in by_keys:
        assert np.isfinite(slope).all()
        assert (slope.swapaxes(1, 2)[~mask] == 0).all()
        assert (slope.swapaxes(1, 2)[mask] != 0).any()


@pytest.mark.parametrize("mode", MODES[-1:])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float16", 4e-3), ("bfloat16", 3e-2)])  # units of the last place
def test_low_precision(dtype, tolerance, mode):
    arrays, mask = tensors(11), paddings(11)[0]

    def function(arrays, mask):
        result = local_attention(*(ops.cast(x, dtype) for x in arrays), 4, mask)
        assert keras.backend.standardize_dtype(result.dtype) == dtype
        return ops.cast(result, "float32")

    result, expected = run(mode, function, arrays, mask), expected_context(*arrays, 4, mask)
    assert_close(result, expected, tolerance)
    assert (result[2] == 0).all()


@pytest.mark.parametrize("mode", MODES[-1:])
def test_an_attention_of_ones_own_gets_blocks_of_two_windows(mode):
    length, window_size = 14, 4
    arrays, shapes = tensors(length), []

    def attention(query, key, value, mask):
        shapes[:] = [tuple(x.shape) for x in (query, key, value, mask)]
        return 2 * attend(attention_weights(query, key, mask), value)

    result = run(mode, lambda *arrays: local_attention(*arrays, window_size, attention=attention), *arrays)

    assert_close(result, 2 * expected_context(*arrays, window_size))
    # 14 positions are four blocks of 4, each beside the one before it; three query heads share a key head.
    blocks = 4 * B * 2
    assert shapes == [(blocks, 3, 4, H), (blocks, 1, 8, H), (blocks, 1, 8, H), (blocks, 1, 4, 8)]


@pytest.mark.parametrize("mode", LEAN_MODES)
@pytest.mark.parametrize("sizes", [(0, 7), (B, 0)], ids=["no rows", "no positions"])
def test_nothing_to_do(sizes, mode):
    batch, length = sizes
    arrays = tensors(length, batch=batch)
    assert run(mode, local_attention, *arrays, 3).shape == (batch, 6, length, H)
    assert run(mode, local_attention, *arrays, 3, np.ones(sizes, bool)).shape == (batch, 6, length, H)


@needs_tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_unknown_sizes(jit_compile):
    import tensorflow as tf

    shapes = [(None, 6, None, H), (None, 2, None, H), (None, 2, None, H), (None, None)]
    signature = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, [*["float32"] * 3, "bool"], strict=True)]

    @tf.function(input_signature=signature, jit_compile=jit_compile)
    def function(query, key, value, padding_mask):
        return local_attention(query, key, value, 4, padding_mask), local_attention(query, key, value, 4)

    for batch, length in [(B, 13), (2, 8), (1, 3), (2, 0)]:
        arrays, mask = tensors(length, batch=batch), np.random.default_rng(0).random((batch, length)) < 0.6
        expected = expected_context(*arrays, 4, mask), expected_context(*arrays, 4)
        assert_close(function(*arrays, mask), expected)


@needs_jax
def test_exported_for_every_length():
    import jax

    batch, length = jax.export.symbolic_shape("batch, length")
    specs = [jax.ShapeDtypeStruct((batch, heads, length, H), "float32") for heads in (6, 2, 2)]
    exported = jax.export.export(jax.jit(lambda *arrays: local_attention(*arrays, 4)))(*specs)
    for sizes in [(B, 13), (2, 8), (1, 3)]:
        arrays = tensors(sizes[1], batch=sizes[0])
        assert_close(exported.call(*arrays), expected_context(*arrays, 4))


def test_equals_the_masked_full_form_on_a_long_text():
    """Not an oracle, but the longest text that is quick: 300 positions, and a window that is no divisor."""
    arrays, (mask, _) = tensors(300), paddings(300)
    places = np.arange(300)
    near = (places <= places[:, None]) & (places > places[:, None] - 17)
    full = dot_product_attention(*arrays, near & mask[:, None])
    assert_close(local_attention(*arrays, 17, mask), ops.convert_to_numpy(full))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"key": (B, 2, 8, H), "value": (B, 2, 8, H)}, r"`key` \(B, K, T, H\).*key.shape=\(3, 2, 8, 5\)"),
        ({"value": (B, 2, 7, H + 1)}, r"value.shape=\(3, 2, 7, 6\)"),
        ({"query": (B, 3, 7, H)}, r"`N` a multiple of `K`. Received: query.shape=\(3, 3, 7, 5\)"),
        ({"padding_mask": (B, 8)}, r"\(3, 7\). Received: padding_mask.shape=\(3, 8\)"),
        ({"padding_mask": (7, 7)}, r"\(3, 7\). Received: padding_mask.shape=\(7, 7\)"),
    ],
)
def test_a_wrong_shape_is_an_error_that_says_both(wrong, message):
    shapes = {"query": (B, 6, 7, H), "key": (B, 2, 7, H), "value": (B, 2, 7, H), **wrong}
    with pytest.raises(ValueError, match=message):
        local_attention(**{name: np.ones(shape, "float32") for name, shape in shapes.items()}, window_size=3)


@pytest.mark.parametrize("window_size", [0, -1, 2.0, None])
def test_window_is_a_positive_integer(window_size):
    query = np.zeros((1, 1, 3, 2), "float32")
    with pytest.raises(ValueError, match="`window_size` must be a positive integer. Received: window_size="):
        local_attention(query, query, query, window_size)
