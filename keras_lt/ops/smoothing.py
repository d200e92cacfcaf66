from keras import ops


def smooth(decay, average, value):
    """Move a running average towards a new value.

    `smooth(decay, average, value) = decay * average + (1 - decay) * value`

    A constant value `g`, smoothed `k` times from 0, gives `(1 - decay**k) * g`: the average starts too small and is
    not corrected for it.

    Args:
        decay: Float in [0, 1]. The share of the old average that is kept.
        average: Tensor of any shape. The average so far.
        value: Tensor of the shape and dtype of `average`.

    Returns:
        The new average, of the shape and dtype of `average`.

    Source: S3, `update`, which calls it `smooth` as The Little Learner does.
    """
    return ops.add(ops.multiply(decay, average), ops.multiply(1 - decay, value))
