"""Attention against the sources' equations in NumPy, finite differences and PyTorch, on every way of running it."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_lt.ops import attend, attention_weights, causal_mask, dot_product_attention
from testing import MODES, assert_close, gradient, needs_tensorflow, needs_torch, run

B, T, S, H = 3, 5, 7, 11
HEADS = {"one key head a query head": (2, 2), "grouped": (4, 2), "one key head": (4, 1)}  # N, K
EMPTY = (2, 3)  # the row and the query that may look at nothing


def normal(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype("float32")


def tensors(num_heads=4, num_key_value_heads=2, batch=B, length=T, key_length=S):
    shape = (batch, num_key_value_heads, key_length, H)
    return normal(batch, num_heads, length, H), normal(*shape, seed=1), normal(*shape, seed=2)


ALL_RANKS = [(T, S), (1, T, S), (B, T, S), (1, 1, T, S), (B, 1, T, S), (1, 4, T, S), (B, 4, T, S)]


def boolean_masks(shapes):
    """Where there are rows, one query of one may look at nothing; all others may look at key 0."""
    masks = {shape: np.random.default_rng(len(shape)).random(shape) < 0.6 for shape in shapes}
    for shape, mask in masks.items():
        mask[..., 0] = True
        if shape[0] == B:
            mask[EMPTY[0], ..., EMPTY[1], :] = False
    return masks


def expected_weights(query, key, allowed=None, bias=None, scale=None):
    """softmax(Q K / sqrt(H) + M) head by head, in float64; `allowed` and `bias` broadcast to (B, N, T, S)."""
    batch, num_heads, length, head_dim = query.shape
    query, key = query.astype("float64"), key.astype("float64")
    full = (batch, num_heads, length, key.shape[2])
    allowed = np.broadcast_to(True if allowed is None else allowed, full)
    bias = np.broadcast_to(0.0 if bias is None else bias, full)
    weights = np.zeros(full)
    for b in range(batch):
        for n in range(num_heads):
            scores = query[b, n] @ key[b, n * key.shape[1] // num_heads].T
            scores = scores * (head_dim**-0.5 if scale is None else scale) + bias[b, n]
            for t in range(length):
                open_keys = np.flatnonzero(allowed[b, n, t])
                exponentials = np.exp(scores[t, open_keys] - scores[t, open_keys].max(initial=-np.inf))
                weights[b, n, t, open_keys] = exponentials / exponentials.sum()
    return weights


def expected_context(weights, value):
    value = np.repeat(value.astype("float64"), weights.shape[1] // value.shape[1], axis=1)
    return np.stack([[w @ v for w, v in zip(*row, strict=True)] for row in zip(weights, value, strict=True)])


def rank_4(mask):
    """(T, S) and (B, T, S) as (1, 1, T, S) and (B, 1, T, S)."""
    return mask[:, None] if mask.ndim == 3 else mask


def softmax(scores):
    exponentials = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def everything(query, key, value, mask=None, scale=None):
    weights = attention_weights(query, key, mask, scale)
    return weights, attend(weights, value), dot_product_attention(query, key, value, mask, scale)


def assert_attention(result, weights, value, tolerance=1e-6):
    context = expected_context(weights, value)
    assert_close(result, (weights, context, context), tolerance)


def under_each_mask(query, key, value, masks):
    return [everything(query, key, value, mask) for mask in masks]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_boolean_masks_of_every_rank(heads, mode):
    query, key, value = tensors(*heads)
    # Compiling takes its time, and the rank that a mask has makes no difference to it.
    every = heads == HEADS["grouped"] and mode == "eager"
    masks = boolean_masks(ALL_RANKS if every else [(T, S), (B, heads[0], T, S)])

    results = run(mode, under_each_mask, query, key, value, [*masks.values()])

    for mask, result in zip(masks.values(), results, strict=True):
        assert_attention(result, expected_weights(query, key, rank_4(mask)), value)
        blocked = ~np.broadcast_to(rank_4(mask), result[0].shape)
        assert (result[0][blocked] == 0).all()
        sums = result[0].sum(axis=-1)
        assert_close(sums, np.broadcast_to(rank_4(mask).any(axis=-1), sums.shape))


@pytest.mark.parametrize("mode", MODES)
def test_added_masks_of_every_rank(mode):
    query, key, value = tensors()
    masks = boolean_masks([(T, S), (B, T, S), (B, 4, T, S)])
    biases = [np.where(mask, normal(*shape), -np.inf).astype("float32") for shape, mask in masks.items()]

    results = run(mode, under_each_mask, query, key, value, biases)

    for mask, bias, result in zip(masks.values(), biases, results, strict=True):
        finite = np.where(mask, bias, 0)
        assert_attention(result, expected_weights(query, key, rank_4(mask), rank_4(finite)), value)
        assert (result[0][~np.broadcast_to(rank_4(mask), result[0].shape)] == 0).all()


@pytest.mark.filterwarnings("error::UserWarning")  # Keras warns of a softmax over one key
@pytest.mark.parametrize("mode", MODES)
def test_no_mask_custom_scale_and_one_query_or_key(mode):
    cases = [(T, S, None), (T, S, 0.37), (1, S, 0.0), (T, 1, None), (1, 1, 2.0)]
    arguments = [(*tensors(length=length, key_length=size), None, scale) for length, size, scale in cases]
    results = run(mode, lambda arguments: [everything(*each) for each in arguments], arguments)
    for (query, key, value, _, scale), result in zip(arguments, results, strict=True):
        assert_attention(result, expected_weights(query, key, scale=scale), value)


@pytest.mark.parametrize("mode", MODES)
def test_blocking_is_what_both_sources_write(mode):
    """S1 adds 0 or minus infinity to the scores, S3 writes -1e9 over them."""
    query, key, value = tensors(length=S)
    allowed = np.tril(np.ones((S, S), bool))
    scores = query.astype("float64") @ np.repeat(key, 2, axis=1).astype("float64").swapaxes(2, 3) / np.sqrt(H)
    first = softmax(scores + np.where(allowed, 0, -np.inf))
    third = np.empty_like(scores)
    for row in range(S):
        for column in range(S):
            third[..., row, column] = scores[..., row, column] if column <= row else -1e9
    third = softmax(third)

    infinite, finite = (np.where(allowed, 0, blocked).astype("float32") for blocked in (-np.inf, -1e9))
    results = run(mode, under_each_mask, query, key, value, [allowed, infinite, finite])

    for result in results:
        assert_attention(result, first, value)
        assert_attention(result, third, value)
        assert (result[0][..., ~allowed] == 0).all()


@pytest.mark.parametrize("mode", MODES)
def test_attention_of_source_3(mode):
    """The chapter's single head: biased linear q, k, v from d to n, causal, no projection after it."""
    length, d, n = 7, 5, 3
    x = normal(length, d)
    parameters = [(normal(n, d, seed=i), normal(n, seed=i)) for i in range(3)]

    def linear(x, weight, bias):
        return np.array([[np.dot(row, line) + b for line, b in zip(weight, bias, strict=True)] for row in x])

    q, k, v = (linear(x.astype("float64"), *p) for p in parameters)
    weights = (q @ k.T) / np.sqrt(n)
    weights = [[weights[row, col] if col <= row else -1e9 for col in range(length)] for row in range(length)]
    expected = softmax(np.array(weights)) @ v

    def function(x, parameters):
        query, key, value = ((x @ ops.transpose(weight) + bias)[None, None] for weight, bias in parameters)
        return dot_product_attention(query, key, value, mask=causal_mask(length, length))[0, 0]

    assert_close(run(mode, function, x, parameters), expected)


@pytest.mark.parametrize("mode", MODES)
def test_window_and_cache_position(mode):
    query, key, value = tensors()
    starts, window = np.array([0, 1, 2]), 3
    allowed = np.zeros((B, 1, T, S), bool)
    for b in range(B):
        for t in range(T):
            for s in range(S):
                allowed[b, 0, t, s] = starts[b] + t - window < s <= starts[b] + t

    result = run(
        mode, lambda q, k, v, at: everything(q, k, v, causal_mask(T, S, at, window)), query, key, value, starts
    )

    assert_attention(result, expected_weights(query, key, allowed), value)


@needs_torch
@pytest.mark.parametrize("heads", HEADS.values(), ids=HEADS)
def test_equals_pytorch(heads):
    import torch

    query, key, value = tensors(*heads)
    boolean = np.random.default_rng(0).random((B, heads[0], T, S)) < 0.6
    boolean[..., 0] = True
    causal = np.tril(np.ones((T, S), bool))
    added = normal(B, heads[0], T, S)
    repeated = [torch.tensor(query)] + [torch.tensor(np.repeat(x, heads[0] // heads[1], axis=1)) for x in (key, value)]
    cases = [
        (None, None, {}),
        (None, 0.37, {"scale": 0.37}),
        (boolean, None, {"attn_mask": torch.tensor(boolean)}),
        (added, None, {"attn_mask": torch.tensor(added)}),
        (causal, None, {"is_causal": True}),
    ]
    for mask, scale, arguments in cases:
        theirs = torch.nn.functional.scaled_dot_product_attention(*repeated, **arguments).numpy()
        _, plain, fused = everything(query, key, value, mask, scale)
        assert_close((plain, fused), (theirs, theirs))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["boolean", "minus infinity"])
def test_a_query_that_may_look_at_nothing(kind, mode):
    query, key, value = tensors()
    mask = np.ones((B, T, S), bool)
    mask[EMPTY] = False
    mask[0] = False  # so that the keys of row 0 are used by nobody
    if kind == "minus infinity":
        mask = np.where(mask, 0, -np.inf).astype("float32")

    def contexts(arrays, mask):
        return ops.stack(everything(*arrays, mask)[1:])  # plain and fused

    result = run(mode, contexts, (query, key, value), mask)
    assert (result[:, EMPTY[0], :, EMPTY[1]] == 0).all()
    assert (result[:, 0] == 0).all()
    assert np.isfinite(result).all()
    assert (result[:, 1] != 0).all()
    for slope, name in zip(gradient(mode, contexts, (query, key, value), mask), "qkv", strict=True):
        assert np.isfinite(slope).all(), name
        assert (slope[0] == 0).all(), name
        assert (slope[1] != 0).any(), name
        if name == "q":
            assert (slope[EMPTY[0], :, EMPTY[1]] == 0).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float16", 4e-3), ("bfloat16", 3e-2)]
)  # a few units of the last place
def test_low_precision(dtype, tolerance, mode):
    query, key, value = tensors()
    allowed = np.tril(np.ones((T, S), bool))
    allowed[3] = False
    added = np.where(allowed, normal(T, S), -1e9).astype("float32")

    def function(query, key, value, allowed, added):
        low = [ops.cast(x, dtype) for x in (query, key, value)]
        results = [*everything(*low, allowed), *everything(*low, added)]
        assert {keras.backend.standardize_dtype(x.dtype) for x in results} == {dtype}
        return [ops.cast(x, "float32") for x in results]

    results = run(mode, function, query, key, value, allowed, added)

    assert all(np.isfinite(result).all() for result in results)
    assert_attention(tuple(results[:3]), expected_weights(query, key, allowed), value, tolerance)
    # A row of nothing but -1e9 is not empty, for these are numbers: beside them the scores vanish, in float32 too.
    weights = expected_weights(query, key, bias=added)
    weights[:, :, 3] = 1 / S
    assert_attention(tuple(results[3:]), weights, value, tolerance)


@pytest.mark.parametrize("mode", MODES[-1:])
def test_gradient_equals_finite_differences(mode):
    arrays = {"query": normal(1, 2, 3, 5), "key": normal(1, 1, 4, 5, seed=1), "value": normal(1, 1, 4, 5, seed=2)}
    direction = normal(1, 2, 3, 5, seed=3)
    mask = np.tril(np.ones((3, 4), bool))

    def total(arrays):
        weights = expected_weights(arrays["query"], arrays["key"], mask)
        return (expected_context(weights, arrays["value"]) * direction).sum()

    expected, step = {}, 1e-4
    for name in arrays:
        expected[name] = np.zeros(arrays[name].shape)
        for index in np.ndindex(arrays[name].shape):
            ends = []
            for sign in (1, -1):
                moved = {other: array.astype("float64") for other, array in arrays.items()}
                moved[name][index] += sign * step
                ends.append(total(moved))
            expected[name][index] = (ends[0] - ends[1]) / (2 * step)

    def function(arrays, mask, direction):
        _, plain, fused = everything(**arrays, mask=mask)
        return (plain + fused) / 2 * direction

    assert_close(gradient(mode, function, arrays, mask, direction), expected)


@pytest.mark.parametrize("mode", MODES)
def test_causality_is_exact(mode):
    last = 3
    query, key, value = tensors(length=S)
    other_key, other_value = key.copy(), value.copy()
    other_key[:, :, last + 1 :], other_value[:, :, last + 1 :] = 1e3, -1e3

    def function(*arrays):
        low = [ops.cast(x, "bfloat16") for x in arrays]
        results = [*everything(*arrays, causal_mask(S, S)), *everything(*low, causal_mask(S, S))]
        return [ops.cast(x, "float32") for x in results]

    before = run(mode, function, query, key, value)
    after = run(mode, function, query, other_key, other_value)

    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one[:, :, : last + 1], other[:, :, : last + 1])
        assert (one[:, :, last + 1 :] != other[:, :, last + 1 :]).any()


@pytest.mark.parametrize("dtype", ["bool", "int32", "int64", "uint8"])
def test_masks_of_whole_numbers(dtype):
    query, key, value = tensors()
    mask = boolean_masks([(B, T, S)])[(B, T, S)]
    assert_attention(
        everything(query, key, value, mask.astype(dtype)), expected_weights(query, key, rank_4(mask)), value
    )
    assert_attention(everything(query, key, value, mask.tolist()), expected_weights(query, key, rank_4(mask)), value)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("sizes", [(0, T, S), (B, 0, S), (B, T, 0)], ids=["no rows", "no queries", "no keys"])
def test_nothing_to_do(sizes, mode):
    batch, length, key_length = sizes
    query, key, value = tensors(4, 2, *sizes)
    weights, plain, fused = run(mode, everything, query, key, value, np.ones((length, key_length), bool))
    assert weights.shape == (batch, 4, length, key_length)
    for context in (plain, fused):
        assert_close(context, np.zeros((batch, 4, length, H)))


GOOD = {"query": (B, 4, T, H), "key": (B, 2, S, H), "value": (B, 2, S, H), "mask": (B, 4, T, S)}
BAD = {
    "rank": {"query": (B, T, H)},
    "batch": {"key": (2, 2, S, H), "value": (2, 2, S, H)},
    "one row of keys": {"key": (1, 2, S, H), "value": (1, 2, S, H)},
    "heads": {"key": (B, 3, S, H), "value": (B, 3, S, H)},
    "size of a head": {"key": (B, 2, S, H + 2)},
    "value length": {"value": (B, 2, S + 1, H)},
    "value heads": {"value": (B, 1, S, H)},
    "value size": {"value": (B, 2, S, H + 2)},
    "mask (S,)": {"mask": (S,)},
    "mask (S, T)": {"mask": (S, T)},
    "mask (1, S)": {"mask": (1, S)},
    "mask (B, S)": {"mask": (B, S)},
    "mask of two rows": {"mask": (2, T, S)},
    "mask of two heads": {"mask": (B, 2, T, S)},
    "mask of heads and no batch": {"mask": (4, T, S)},
    "mask of rank 5": {"mask": (1, B, 4, T, S)},
}


@pytest.mark.parametrize("wrong", BAD.values(), ids=BAD)
def test_a_wrong_shape_is_an_error_that_says_both(wrong):
    arrays = {name: np.ones(shape, "float32") for name, shape in (GOOD | wrong).items()}
    with pytest.raises(ValueError, match="Received") as error:
        dot_product_attention(**arrays)
    for name, shape in wrong.items():
        assert f"{name}.shape={shape}" in str(error.value)
    expected = str((B, 4, T, S)) if "mask" in wrong else f"query.shape={arrays['query'].shape}"
    assert expected in str(error.value)
    if "value" not in wrong:
        del arrays["value"]
        with pytest.raises(ValueError, match=r"\(B, (K, S|N, T|N or 1, T), (H|S)\)"):
            attention_weights(**arrays)


def test_a_wrong_shape_is_an_error_in_attend():
    for value in [(B, 3, S, H), (B, 2, S + 1, H), (2, 2, S, H), (B, S, H)]:
        with pytest.raises(ValueError, match="Received") as error:
            attend(np.ones((B, 4, T, S)), np.ones(value))
        assert f"weights.shape={(B, 4, T, S)}" in str(error.value)
        assert f"value.shape={value}" in str(error.value)


@needs_tensorflow
@pytest.mark.parametrize("jit_compile", [False, True])
def test_unknown_sizes(jit_compile):
    import tensorflow as tf

    shapes = [(None, 4, None, H), (None, 2, None, H), (None, 2, None, H), (None, None, None, None)]
    dtypes = ["float32", "float32", "float32", "bool"]
    signature = [tf.TensorSpec(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    function = tf.function(everything, input_signature=signature, jit_compile=jit_compile)
    for batch, length, key_length in [(B, T, S), (2, 1, 3)]:
        query, key, value = tensors(4, 2, batch, length, key_length)
        mask = np.random.default_rng(0).random((batch, 1, length, key_length)) < 0.6
        result = function(query, key, value, mask)
        assert_attention(result, expected_weights(query, key, mask), value)


@needs_tensorflow  # Keras promotes float64 to float32 on the other backends
def test_float64_is_kept():
    query, key, value = (x.astype("float64") for x in tensors())
    assert_attention(everything(query, key, value), expected_weights(query, key), value, tolerance=1e-14)
