import keras
from keras import ops


def standardize(inputs, axis=-1, epsilon=1e-5):
    """Shift and scale to mean 0 and variance 1: `(x - mean) / sqrt(variance + epsilon)`, with the biased variance.

    Computed in float32 at least: float16 does not hold the square of 256. Layer normalisation is
    `standardize(x) * gamma + beta`; the models use Keras's own layer for it.

    Args:
        inputs: Tensor of floats.
        axis: Integer. The axis over which mean and variance are taken. Defaults to `-1`.
        epsilon: Float. Added to the variance. Defaults to `1e-5`.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    Source: S1, `standardize`; S3, `layer_norm`.
    """
    inputs = ops.convert_to_tensor(inputs)
    wide = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
    centred = wide - ops.mean(wide, axis=axis, keepdims=True)
    variance = ops.mean(ops.square(centred), axis=axis, keepdims=True)
    return ops.cast(centred / ops.sqrt(variance + epsilon), inputs.dtype)
