import keras
from keras import ops


def gelu(inputs):
    """The Gaussian error linear unit: `x (1 + erf(x / sqrt(2))) / 2`, computed in float32 at least.

    What `keras.activations.gelu` is, in operations that every export format has.

    Args:
        inputs: Tensor.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    References:
    - [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415)
    """
    inputs = ops.convert_to_tensor(inputs)
    x = ops.cast(inputs, keras.backend.result_type(inputs.dtype, "float32"))
    return ops.cast(0.5 * x * (1 + ops.erf(x * 0.5**0.5)), inputs.dtype)


@keras.saving.register_keras_serializable(package="keras_lt")
def gelu_tanh(inputs):
    """The Gaussian error linear unit by its tanh approximation, as GPT-2 has it.

    Args:
        inputs: Tensor.

    Returns:
        A tensor of the same shape.

    References:
    - [Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415)
    """
    return ops.gelu(inputs, approximate=True)
