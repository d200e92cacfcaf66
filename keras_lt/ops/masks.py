from keras import ops


def causal_mask(query_length, key_length, start_index=0, window_size=None):
    """Which keys each query may look at: those not after it, and not too far before it.

    Query `t` stands at position `start_index + t`, key `s` at position `s`. The key is visible when
    `s <= start_index + t` and, with a window, `s > start_index + t - window_size`. A blocked key gets weight exactly 0,
    which is what the sources mean by adding minus infinity (S1) or by writing -1e9 over the score (S3).

    Args:
        query_length: Integer. Number of queries, `T`.
        key_length: Integer. Number of keys, `S`.
        start_index: Integer, or an integer tensor of shape `()` or `(B,)`. Position of the first query: 0 without a
            cache, the number of cached keys with one. Defaults to `0`.
        window_size: Integer or `None`. Number of keys a query sees, itself included. Defaults to `None`, all of them.

    Returns:
        A boolean tensor, True where the query may look at the key: `(T, S)`, or `(B, T, S)` where `start_index` has a
        value for each row.

    Source: S1, `M` of self-attention; S3, `causal_mask`.
    """
    keys = ops.arange(key_length, dtype="int32")
    # `expand_dims`, here and in all that models are exported with: LiteRT and OpenVINO do not read `x[..., None]`.
    starts = ops.expand_dims(ops.convert_to_tensor(start_index, dtype="int32"), -1)
    queries = ops.expand_dims(starts + ops.arange(query_length, dtype="int32"), -1)
    visible = keys <= queries
    if window_size is not None:
        # No wider than int32 holds: beyond that the difference would come out positive, and hide what may be seen.
        visible = ops.logical_and(visible, keys > queries - min(window_size, 2**31 - 1))
    return visible


def expand_mask(mask, query_length, key_length, num_heads=None, batch_size=None, name="attention_mask"):
    """Bring an attention mask of rank 2, 3 or 4 to rank 4, after checking what is known of its shape.

    Args:
        mask: Tensor of shape `(T, S)`, `(B, T, S)`, `(B, N, T, S)`, or with 1 in place of `B` or `N`.
        query_length: Integer or `None`. The `T` expected.
        key_length: Integer or `None`. The `S` expected.
        num_heads: Integer or `None`. The `N` expected. Defaults to `None`.
        batch_size: Integer or `None`. The `B` expected. Defaults to `None`.
        name: String. What the error calls the mask. Defaults to `"attention_mask"`.

    Returns:
        The mask in the shape `(B or 1, N or 1, T, S)`.

    Raises:
        ValueError: If the rank is not 2, 3 or 4, or a size is another than expected.

    Source: S1, `M` of self-attention.
    """
    shape = tuple(mask.shape)
    expected = (batch_size, num_heads, query_length, key_length)
    full = {2: (1, 1, *shape), 3: (*shape[:1], 1, *shape[1:]), 4: shape}.get(len(shape))
    if full is None or any(
        None not in (size, wanted) and size != wanted and not (axis < 2 and size == 1)
        for axis, (size, wanted) in enumerate(zip(full, expected, strict=True))
    ):
        raise ValueError(
            f"`{name}` must have the shape (T, S), (B, T, S) or (B, N or 1, T, S) with (B, N, T, S) = {expected}. "
            f"Received: {name}.shape={shape}"
        )
    for axis in {2: (0, 0), 3: (1,), 4: ()}[len(shape)]:
        mask = ops.expand_dims(mask, axis)
    return mask


def expand_padding_mask(mask, key_length, batch_size=None, name="padding_mask"):
    """Bring a padding mask `(B, S)` to the shape `(B, 1, 1, S)`, after checking what is known of its shape.

    Args:
        mask: Tensor of shape `(B, S)`, true or not 0 for a real key; or `None`.
        key_length: Integer or `None`. The `S` expected.
        batch_size: Integer or `None`. The `B` expected. Defaults to `None`.
        name: String. What the error calls the mask. Defaults to `"padding_mask"`.

    Returns:
        A boolean tensor of shape `(B, 1, 1, S)`, or `None` for `None`.

    Raises:
        ValueError: If the rank is not 2, or a size is another than expected.
    """
    if mask is None:
        return None
    shape = tuple(mask.shape)
    expected = (batch_size, key_length)
    if len(shape) != 2 or any(
        None not in (size, wanted) and size != wanted for size, wanted in zip(shape, expected, strict=True)
    ):
        raise ValueError(f"`{name}` must have the shape (B, S) = {expected}. Received: {name}.shape={shape}")
    return ops.expand_dims(ops.cast(mask, "bool"), (1, 2))


def combine_masks(*masks):
    """The masks that are there, joined: a place is open only where all of them are.

    Args:
        *masks: Boolean tensors that broadcast against each other, or `None`.

    Returns:
        Their logical "and", or `None` where there is none.
    """
    combined = None
    for mask in masks:
        if mask is not None:
            combined = mask if combined is None else ops.logical_and(combined, mask)
    return combined
