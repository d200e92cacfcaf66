import math

import keras
import numpy as np
from keras import ops

from keras_lt.ops.masks import expand_mask

# Finite, so that a row of blocked scores gives no NaN, and far enough below any score that its weight underflows to 0.
_BLOCKED = -1e30
_LOWEST = float(np.finfo("float32").min)


def dot_product_attention(query, key, value, mask=None, scale=None):
    """Scaled dot-product attention: `softmax(Q K / sqrt(H) + M) V`.

    Where the backend has a fused kernel that pays (PyTorch; JAX, but not on a CPU) it is used, unless numbers are to be
    added to the scores; the result is that of `attention_weights` and `attend`. A query that may look at nothing gets a
    context of exactly zero, with zero gradients.

    Args:
        query: Tensor of shape `(B, N, T, H)`.
        key: Tensor of shape `(B, K, S, H)`. `N` is a multiple of `K`: each key head serves `N / K` query heads.
        value: Tensor of shape `(B, K, S, H)`.
        mask: Tensor of shape `(T, S)`, `(B, T, S)` or `(B, N or 1, T, S)`; booleans (True = may look) or numbers that
            are added to the scores (minus infinity = may not look). Defaults to `None`.
        scale: Float. What the scores are multiplied by. Defaults to `None`, that is `1 / sqrt(H)`.

    Returns:
        The context, a tensor of shape `(B, N, T, H)`.

    Raises:
        ValueError: If the shapes do not fit each other.

    Example:

    >>> query, key, value = np.random.rand(3, 2, 4, 7, 5)
    >>> keras_lt.ops.dot_product_attention(query, key, value, mask=keras_lt.ops.causal_mask(7, 7)).shape
    (2, 4, 7, 5)

    Source: S1, `Attention`; S3, `attention`.
    """
    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    check_attention_shapes(query=(query, "BNTH"), key=(key, "BKSH"), value=(value, "BKSH"))
    mask, bias = _boolean_and_bias(mask, query, key)
    if bias is None and _is_single(query, key):
        return _attend_once(query, key, value, mask, scale)
    # Keras's kernels round an added mask to the dtype of the query: in float16, -1e9 becomes minus infinity.
    if bias is not None or not _has_kernel():
        return _plain_attention(query, key, value, mask, bias, scale)
    query, key, value = (ops.swapaxes(x, 1, 2) for x in (query, key, value))  # (B, T, N, H)
    groups = query.shape[2] // key.shape[2]
    if groups > 1:
        key, value = ops.repeat(key, groups, axis=2), ops.repeat(value, groups, axis=2)
    context = ops.swapaxes(ops.dot_product_attention(query, key, value, mask=mask, scale=scale), 1, 2)
    return context if mask is None else context * _has_key(mask, context.dtype)


def attention_weights(query, key, mask=None, scale=None):
    """How much each query looks at each key: `softmax(Q K / sqrt(H) + M)`.

    The softmax is taken in float32 at least. A blocked key gets weight exactly 0, and so does every key of a query
    that may look at nothing.

    Args:
        query: Tensor of shape `(B, N, T, H)`.
        key: Tensor of shape `(B, K, S, H)`, `N` being a multiple of `K`.
        mask: As in `dot_product_attention`. Defaults to `None`.
        scale: Float. What the scores are multiplied by. Defaults to `None`, that is `1 / sqrt(H)`.

    Returns:
        The weights, a tensor of shape `(B, N, T, S)` in the dtype of `query`.

    Raises:
        ValueError: If the shapes do not fit each other.

    Source: S1, `Attention`; S2, `alpha`; S3, `attention`.
    """
    query, key = ops.convert_to_tensor(query), ops.convert_to_tensor(key)
    check_attention_shapes(query=(query, "BNTH"), key=(key, "BKSH"))
    return _weights(query, key, *_boolean_and_bias(mask, query, key), scale)


def attend(weights, value):
    """The values of the keys, mixed by the weights.

    Args:
        weights: Tensor of shape `(B, N, T, S)`, as from `attention_weights`.
        value: Tensor of shape `(B, K, S, H)`, `N` being a multiple of `K`.

    Returns:
        The context, a tensor of shape `(B, N, T, H)`.

    Raises:
        ValueError: If the shapes do not fit each other.

    Source: S1, `Attention`; S3, `attention`.
    """
    weights, value = ops.convert_to_tensor(weights), ops.convert_to_tensor(value)
    check_attention_shapes(weights=(weights, "BNTS"), value=(value, "BKSH"))
    context = ops.einsum("bkts,bksh->bkth", _group(weights, value.shape[1]), value)
    return _ungroup(context, weights.shape[1], ops.shape(weights)[2])


def _has_kernel():
    """Whether Keras has a fused kernel that is faster: none on TensorFlow, and JAX's is slower on a CPU."""
    backend = keras.config.backend()
    if backend == "jax":
        return not all(device.startswith("cpu") for device in keras.distribution.list_devices())
    return backend == "torch"


def _plain_attention(query, key, value, mask, bias, scale):
    dtype = query.dtype
    # Without the weights' division, which may come later, a sum of many values would go beyond half precision.
    if keras.backend.standardize_dtype(dtype) in ("float16", "bfloat16"):
        return attend(_weights(query, key, mask, bias, scale), value)
    scores = _scores(query, key, mask, bias, scale)
    # A softmax is the same whatever number is taken from all scores: there is nothing to differentiate.
    highest = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True, initial=_LOWEST))
    powers = ops.exp(scores - highest)
    # One more key, of the lowest score and without a value: it counts only where there is no other.
    total = ops.sum(powers, axis=-1, keepdims=True) + ops.exp(_LOWEST - highest)
    # To divide the context costs H divisions a row, to divide the weights S.
    context = attend(ops.cast(powers, dtype), value) / ops.cast(total, dtype)
    return context if mask is None else context * _has_key(mask, dtype)


def _weights(query, key, mask, bias, scale):
    dtype = query.dtype
    scores = _scores(query, key, mask, bias, scale)
    # The softmax over a single key is written out, because Keras warns of it.
    weights = ops.exp(scores - scores) if scores.shape[-1] == 1 else ops.softmax(scores, axis=-1)
    weights = ops.cast(weights, dtype)
    return weights if mask is None else weights * _has_key(mask, dtype)


def _scores(query, key, mask, bias, scale):
    """The scores in float32 at least, `(B, N, T, S)`; blocked ones lie far below any other."""
    query = ops.multiply(query, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    scores = ops.einsum("bkth,bksh->bkts", _group(query, key.shape[1]), key)
    scores = _ungroup(scores, query.shape[1], ops.shape(query)[2])
    scores = ops.cast(scores, keras.backend.result_type(query.dtype, "float32"))
    if bias is not None:
        scores = scores + ops.cast(bias, scores.dtype)
    return scores if mask is None else ops.where(mask, scores, _BLOCKED)


def _is_single(query, key):
    """Whether there is one query a row, and something to look at, in shapes that are known so far."""
    length, dtype = key.shape[2], keras.backend.standardize_dtype(query.dtype)
    # float16 could not hold the sum of many values that `_attend_once` divides at the end.
    return query.shape[2] == 1 and query.shape[0] != 0 and isinstance(length, int) and length > 1 and dtype != "float16"


def _attend_once(query, key, value, mask, scale):
    """The context of a single query a row, as in decoding: products of a vector and a matrix.

    XLA on a CPU makes a fast one of them with two axes of batches, none of which is 1, and copies the keys otherwise:
    so heads are one axis, and parts of the keys the other.
    """
    batch_size, num_heads, _, head_dim = ops.shape(query)
    num_key_heads, length = key.shape[1:3]
    rows, groups = batch_size * num_key_heads, query.shape[1] // num_key_heads
    num_parts = next(parts for parts in (4, 3, 2, 1) if length % parts == 0)
    query = ops.multiply(query, 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    query = ops.reshape(query, (rows, 1, groups, head_dim))
    query = ops.broadcast_to(query, (rows, num_parts, groups, head_dim))
    key, value = (ops.reshape(x, (rows, num_parts, length // num_parts, head_dim)) for x in (key, value))
    scores = ops.swapaxes(ops.matmul(query, ops.swapaxes(key, 2, 3)), 1, 2)  # (B K, N/K, parts, S/parts)
    scores = ops.reshape(scores, (batch_size, num_heads, 1, length))
    scores = ops.cast(scores, keras.backend.result_type(query.dtype, "float32"))
    if mask is not None:
        scores = ops.where(mask, scores, _BLOCKED)
    largest = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))  # (B, N, 1, 1)
    weights = ops.exp(scores - largest)
    total = ops.sum(weights, axis=-1, keepdims=True)
    weights = ops.reshape(ops.cast(weights, value.dtype), (rows, groups, num_parts, length // num_parts))
    context = ops.sum(ops.matmul(ops.swapaxes(weights, 1, 2), value), axis=1)  # (B K, N/K, H)
    context = ops.reshape(context, (batch_size, num_heads, 1, head_dim))
    context = context / ops.cast(total, context.dtype)
    return context if mask is None else ops.where(largest <= _BLOCKED, 0, context)


def _group(x, num_key_value_heads):
    """Stack the queries of the heads that share a key head: (B, N, T, X) -> (B, K, N/K*T, X)."""
    groups = x.shape[1] // num_key_value_heads
    if groups == 1:
        return x
    batch_size, _, length, size = ops.shape(x)
    return ops.reshape(x, (batch_size, num_key_value_heads, groups * length, size))


def _ungroup(x, num_heads, query_length):
    if x.shape[1] == num_heads:
        return x
    return ops.reshape(x, (ops.shape(x)[0], num_heads, query_length, ops.shape(x)[3]))


def _boolean_and_bias(mask, query, key):
    """Split a mask into where one may look (or None) and what is added to the scores (or None), both of rank 4."""
    if mask is None:
        return None, None
    mask = ops.convert_to_tensor(mask)
    mask = expand_mask(mask, query.shape[2], key.shape[2], query.shape[1], query.shape[0], name="mask")
    if "float" not in keras.backend.standardize_dtype(mask.dtype):
        return ops.cast(mask, "bool"), None
    allowed = mask > -np.inf
    return allowed, ops.where(allowed, mask, ops.zeros_like(mask))


def _has_key(mask, dtype):
    return ops.cast(ops.any(mask, axis=-1, keepdims=True), dtype)


def check_attention_shapes(**tensors):
    """Raise unless the tensors, `name=(tensor, letters)`, have one size for each letter and N is a multiple of K."""
    sizes, fit = {}, True
    for tensor, letters in tensors.values():
        known = [(letter, size) for letter, size in zip(letters, tensor.shape, strict=False) if size is not None]
        fit = fit and len(tensor.shape) == len(letters) and all(sizes.setdefault(*item) == item[1] for item in known)
    if not fit or sizes["N"] % sizes["K"]:
        expected = ", ".join(f"`{name}` ({', '.join(letters)})" for name, (_, letters) in tensors.items())
        received = ", ".join(f"{name}.shape={tuple(tensor.shape)}" for name, (tensor, _) in tensors.items())
        raise ValueError(f"Shapes must be {expected}, with `N` a multiple of `K`. Received: {received}")
