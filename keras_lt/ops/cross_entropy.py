import keras
from keras import ops

from keras_lt.ops.ids import is_id, nan_unless


def cross_entropy(logits, token_ids):
    """Minus the log-probability, in nats, that the logits give to each token.

    Computed in float32 at least, softmax and logarithm in one. An id outside `0 .. V-1` gives NaN on every backend.

    Args:
        logits: Tensor of shape `(..., V)`.
        token_ids: Integer tensor of shape `(...)`.

    Returns:
        A tensor of shape `(...)`.

    Raises:
        ValueError: If the shapes do not fit each other.

    Source: S3, `cross_entropy`.
    """
    logits = ops.convert_to_tensor(logits)
    logits = ops.cast(logits, keras.backend.result_type(logits.dtype, "float32"))
    token_ids = ops.convert_to_tensor(token_ids)
    if len(token_ids.shape) + 1 != len(logits.shape):
        raise ValueError(
            "`token_ids` must have the shape of `logits` without its last axis. "
            f"Received: token_ids.shape={tuple(token_ids.shape)}, logits.shape={tuple(logits.shape)}"
        )
    known = is_id(token_ids, logits.shape[-1])
    token_ids = ops.cast(ops.where(known, token_ids, 0), "int32")
    losses = ops.sparse_categorical_crossentropy(token_ids, logits, from_logits=True)
    return nan_unless(known, losses)
