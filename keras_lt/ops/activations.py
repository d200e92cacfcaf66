import keras
from keras import ops


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
