import numpy as np
from keras import ops

from keras_lt.ops.attention import check_attention_shapes, dot_product_attention
from keras_lt.ops.masks import causal_mask, expand_padding_mask


def local_attention(query, key, value, window_size, padding_mask=None, attention=dot_product_attention):
    """Causal attention to the `window_size` nearest positions, in time and memory proportional to `T * window_size`.

    The sequence is cut into blocks of `window_size` positions. All that the queries of a block may look at lies in
    their own block and the one before it, so that each block is a small attention of its own, with `2 * window_size`
    keys, and no `(T, T)` tensor is made. The result is that of `dot_product_attention` under a causal mask with a
    window: a query that may look at nothing gets a context of exactly zero, with zero gradients.

    Args:
        query: Tensor of shape `(B, N, T, H)`.
        key: Tensor of shape `(B, K, T, H)`. `N` is a multiple of `K`: each key head serves `N / K` query heads.
        value: Tensor of shape `(B, K, T, H)`.
        window_size: Integer. Number of positions a query sees, its own included.
        padding_mask: Tensor of shape `(B, T)`, true or not 0 for a real key. Defaults to `None`, all real.
        attention: Function of a query, key, value and boolean mask, as `dot_product_attention` takes them, with the
            blocks of all rows and key heads along the first axis; returns their context. Defaults to
            `dot_product_attention`.

    Returns:
        The context, a tensor of shape `(B, N, T, H)`.

    Raises:
        ValueError: If the shapes do not fit each other, or the window is no positive integer.

    Example:

    >>> query, key, value = np.random.rand(3, 2, 4, 7, 5)
    >>> keras_lt.ops.local_attention(query, key, value, window_size=3).shape
    (2, 4, 7, 5)

    Source: S2, restricted self-attention.
    """
    if not isinstance(window_size, (int, np.integer)) or window_size < 1:
        raise ValueError(f"`window_size` must be a positive integer. Received: window_size={window_size!r}")
    query, key, value = (ops.convert_to_tensor(x) for x in (query, key, value))
    check_attention_shapes(query=(query, "BNTH"), key=(key, "BKTH"), value=(value, "BKTH"))
    padding_mask = expand_padding_mask(padding_mask, query.shape[2], query.shape[0])
    batch_size, num_heads, length, head_dim = ops.shape(query)
    num_key_heads, groups = key.shape[1], num_heads // key.shape[1]
    size = _block_size(window_size, length)
    num_blocks = (length + size - 1) // size
    missing = num_blocks * size - length
    # A tensor like a value, so that it is cut like one.
    real = ops.ones((batch_size, 1, length), "bool") if padding_mask is None else ops.squeeze(padding_mask, 1)
    real = ops.expand_dims(ops.repeat(real, num_key_heads, axis=1), 3)  # (B, K, T, 1)
    key, value, real = (_with_block_before(_pad(x, size, missing), size) for x in (key, value, real))
    near = causal_mask(size, 2 * size, start_index=size, window_size=window_size)
    mask = ops.logical_and(near, ops.swapaxes(real, 2, 3))  # (blocks, 1, size, 2 * size)
    context = attention(_cut(_pad(query, 0, missing), size, groups), key, value, mask)  # (blocks, N / K, size, H)
    context = ops.reshape(context, (batch_size * num_key_heads, num_blocks, groups, size, head_dim))
    context = ops.swapaxes(context, 1, 2) if groups > 1 else context
    return ops.reshape(context, (batch_size, num_heads, num_blocks * size, head_dim))[:, :, :length]


def _block_size(window_size, length):
    """The window, or the whole of a sequence that is shorter; at least 1."""
    if isinstance(length, int):
        return max(min(window_size, length), 1)
    # A length that only the running graph knows; while JAX exports for every length, it is an expression instead.
    return ops.maximum(ops.minimum(window_size, length), 1) if ops.is_tensor(length) else window_size


def _pad(x, before, after):
    return ops.pad(x, ((0, 0), (0, 0), (before, after), (0, 0)))


def _cut(x, size, groups=1):
    """`(B, K * groups, T, H)` to blocks along the first axis, `(B * K * T / size, groups, size, H)`."""
    batch_size, num_heads, length, head_dim = ops.shape(x)
    rows, num_blocks = batch_size * (num_heads // groups), length // size
    x = ops.reshape(x, (rows, groups, num_blocks, size, head_dim))
    x = ops.swapaxes(x, 1, 2) if groups > 1 else x
    return ops.reshape(x, (rows * num_blocks, groups, size, head_dim))


def _with_block_before(x, size):
    """`(B, K, size + T, H)` to blocks that begin `size` positions earlier, `(B * K * T / size, 1, 2 * size, H)`."""
    before = x[:, :, : ops.shape(x)[2] - size]
    return ops.concatenate([_cut(before, size), _cut(x[:, :, size:], size)], axis=2)
