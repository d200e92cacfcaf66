import keras
import numpy as np
from keras import ops


def is_id(token_ids, vocabulary_size):
    """Which of the integers are ids of a vocabulary: `0 <= id < vocabulary_size`.

    Args:
        token_ids: Integer tensor.
        vocabulary_size: Integer.

    Returns:
        A boolean tensor of the shape of `token_ids`.
    """
    token_ids = ops.convert_to_tensor(token_ids)
    # `vocabulary_size` need not fit into the narrow integers; the wide ones stay, for 2**32 must not become 0.
    if keras.backend.standardize_dtype(token_ids.dtype) in ("bool", "int8", "int16", "uint8", "uint16"):
        token_ids = ops.cast(token_ids, "int32")
    return ops.logical_and(token_ids >= 0, token_ids < vocabulary_size)


def nan_unless(condition, values):
    """The values where the condition holds, NaN elsewhere: how a compiled step, which cannot raise, says "wrong input".

    Args:
        condition: Boolean tensor, of the shape of `values` or of one that broadcasts to it.
        values: Tensor of floats.

    Returns:
        A tensor of the shape and dtype of `values`.
    """
    return ops.where(condition, values, ops.cast(np.nan, values.dtype))
