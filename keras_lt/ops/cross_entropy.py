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

    Source: S3, `cross_entropy`.
    """
    logits = ops.convert_to_tensor(logits)
    logits = ops.cast(logits, keras.backend.result_type(logits.dtype, "float32"))
    token_ids = ops.cast(token_ids, "int32")
    known = is_id(token_ids, logits.shape[-1])
    losses = ops.sparse_categorical_crossentropy(ops.where(known, token_ids, 0), logits, from_logits=True)
    return nan_unless(known, losses)
