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
        ValueError: If the sample weight has another rank.
    """
    weights = None if mask is None else ops.cast(mask, "float32")
    if sample_weight is None:
        return weights
    sample_weight = ops.cast(sample_weight, "float32")
    rank = len(sample_weight.shape)
    if rank == 1:
        sample_weight = sample_weight[:, None]
    elif rank == 3 and sample_weight.shape[-1] == 1:
        sample_weight = sample_weight[..., 0]
    elif rank != 2:
        raise ValueError(
            "`sample_weight` must have the shape (B,), one weight a sequence, or (B, T), one a token. "
            f"Received: sample_weight.shape={tuple(sample_weight.shape)}"
        )
    sample_weight = ops.broadcast_to(sample_weight, ops.shape(token_ids))
    return sample_weight if weights is None else weights * sample_weight
