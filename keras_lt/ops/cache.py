from keras import ops


def update_cache(cache, new, start_index):
    """Write new entries into a cache at each row's own place.

    Args:
        cache: Tensor of shape `(B, K, S, H)`.
        new: Tensor of shape `(B, K, T, H)`.
        start_index: Integer, or an integer tensor of shape `()` or `(B,)`. Where the first of the new entries goes.
            Entries that would fall outside the cache are dropped; a single one (`T` is 1) leaves a zero in the last
            place, which attention sees only from there, after that place was written.

    Returns:
        The cache with `new[b, :, t]` at `[b, :, start_index[b] + t]`, a tensor of shape `(B, K, S, H)`.
    """
    if new.shape[2] == 0:
        return cache
    new = ops.cast(new, cache.dtype)
    if new.shape[2] == 1:
        return _update_one(cache, new, start_index)
    length = ops.shape(new)[2]
    source, written = _source_index(start_index, ops.shape(cache)[2], length)
    written = written[:, None, :, None]
    source = ops.clip(source, 0, length - 1)[:, None, :, None]
    source = ops.broadcast_to(source, ops.shape(cache))
    return ops.where(written, ops.take_along_axis(new, source, axis=2), cache)


def place_mask(mask, key_length, start_index):
    """Stretch a mask of the new tokens over all keys of a cache; the keys written before are open.

    Args:
        mask: Boolean tensor of shape `(B, T)`, or `None`.
        key_length: Integer. Length `S` of the cache.
        start_index: As in `update_cache`.

    Returns:
        A boolean tensor of shape `(B, S)`, or `None` for `None` and for no new tokens.
    """
    if mask is None or mask.shape[1] == 0:
        return None
    mask = ops.cast(mask, "bool")
    length = ops.shape(mask)[1]
    source, written = _source_index(start_index, key_length, length)
    source = ops.broadcast_to(ops.clip(source, 0, length - 1), (ops.shape(mask)[0], key_length))
    return ops.logical_or(ops.take_along_axis(mask, source, axis=1), ops.logical_not(written))


def _update_one(cache, new, start_index):
    """Write one entry a row: a scatter, which a compiled loop does in place, touching that entry alone."""
    batch_size, num_heads, cache_length, size = ops.shape(cache)
    starts = ops.broadcast_to(ops.reshape(ops.cast(start_index, "int32"), (-1, 1)), (batch_size, num_heads))
    # Backends differ in what a scatter does outside the tensor, and to read what is there XLA starts threads.
    inside = ops.logical_and(starts >= 0, starts < cache_length)
    places = ops.where(inside, starts, cache_length - 1)
    entries = ops.where(inside[:, :, None, None], new, ops.zeros_like(new))
    heads = ops.reshape(ops.arange(batch_size * num_heads, dtype="int32"), (batch_size, num_heads))
    flat = ops.reshape(cache, (-1, size))  # (B K S, H): a scatter along one axis is the fastest there is
    index = ops.reshape(heads * cache_length + places, (-1, 1))
    return ops.reshape(ops.scatter_update(flat, index, ops.reshape(entries, (-1, size))), ops.shape(cache))


def _source_index(start_index, cache_length, length):
    """For each place of the cache which new entry goes there, `(B or 1, S)`, and whether one does."""
    starts = ops.reshape(ops.cast(start_index, "int32"), (-1, 1))
    source = ops.arange(cache_length, dtype="int32") - starts
    return source, ops.logical_and(source >= 0, source < length)
