from keras import ops


def token_weights(token_ids, mask=None, sample_weight=None):
    """How much each token counts in a mean over tokens: the padding mask times the sample weight.

    Args:
        token_ids: Tensor of shape `(B, T)`, of which only the shape is used.
        mask: Boolean tensor of shape `(B, T)`, True for a real token. Defaults to `None`.
        sample_weight: Tensor of shape `(B,)` or `(B, 1)`, a weight a sequence, or `(B, T)` or `(B, T, 1)`, a weight a
            token. Defaults to `None`.

    Returns:
        A float32 tensor of shape `(B, T)`, or `None` where every token counts alike.

    Raises:
        ValueError: If the sample weight has another shape.
    """
    weights = None if mask is None else ops.cast(mask, "float32")
    if sample_weight is None:
        return weights
    sample_weight = ops.cast(sample_weight, "float32")
    shape, expected = tuple(sample_weight.shape), tuple(token_ids.shape)
    if len(shape) == len(expected) + 1 and shape[-1] == 1:
        sample_weight = sample_weight[..., 0]
    while len(sample_weight.shape) < len(expected):
        sample_weight = sample_weight[..., None]
    if len(sample_weight.shape) > len(expected) or any(
        None not in (size, wanted) and size not in (1, wanted)
        for size, wanted in zip(sample_weight.shape, expected, strict=True)
    ):
        raise ValueError(
            "`sample_weight` must have the shape (B,), one weight a sequence, or (B, T), one a token, with the shape "
            f"of the ids (B, T) = {expected}. Received: sample_weight.shape={shape}"
        )
    sample_weight = ops.broadcast_to(sample_weight, ops.shape(token_ids))
    return sample_weight if weights is None else weights * sample_weight
