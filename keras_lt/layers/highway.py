import math

import keras
from keras import activations, initializers, layers, ops

from keras_lt.backend import check_number
from keras_lt.layers.composite_layer import CompositeLayer
from keras_lt.layers.initialization import projection_initializer
from keras_lt.ops import highway


@keras.saving.register_keras_serializable(package="keras_lt")
class Highway(CompositeLayer):
    """A dense layer whose gate decides, place by place, how much of the inputs is replaced.

    `H(x) = F(x) g(x) + x (1 - g(x))` with `F(x) = activation(W_F x + b_F)`, `g(x) = sigmoid(W_g x + b_g)`. One product
    gives both. With a bias of the gate below 0 the layer starts near the identity, so that many can be stacked; the
    gradient through n of them still carries a product of n factors `1 - g`, which residual learning does not have.

    Args:
        activation: Activation function of `F`. Defaults to `"relu"`.
        transform_gate_bias: Float. What the bias of the gate starts at. Defaults to `-2.0`, a gate of about 0.12.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the bias of `F`. Defaults to `"zeros"`.

    Call arguments:
        inputs: Tensor of shape `(..., D)`, of rank 2 or more.

    Returns:
        A tensor of the shape of the inputs.

    Example:

    >>> layer = keras_lt.layers.Highway()
    >>> layer(np.random.rand(2, 5)).shape
    (2, 5)

    Source: S2, highway networks.
    """

    def __init__(
        self,
        activation="relu",
        transform_gate_bias=-2.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.activation = activations.get(activation)
        self.transform_gate_bias = transform_gate_bias
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.input_spec = layers.InputSpec(min_ndim=2)
        check_number("transform_gate_bias", transform_gate_bias, -math.inf)

    def build(self, input_shape):
        hidden_dim = input_shape[-1]
        if hidden_dim is None:
            raise ValueError(f"The last axis must have a known size. Received: input_shape={tuple(input_shape)}")
        self.input_spec = layers.InputSpec(min_ndim=2, axes={-1: hidden_dim})
        parts = [hidden_dim, hidden_dim]
        self.projection = layers.Dense(
            sum(parts),
            kernel_initializer=projection_initializer(self.kernel_initializer, parts),
            bias_initializer=self._initialize_bias,
            dtype=self.dtype_policy,
            name="projection",
        )
        self.projection.build(input_shape)
        self.finish_build()

    def call(self, inputs):
        inputs = ops.cast(inputs, self.compute_dtype)
        transformed, gate = ops.split(self.projection(inputs), 2, axis=-1)  # twice (..., D)
        return highway(inputs, self.activation(transformed), ops.sigmoid(gate))

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def _initialize_bias(self, shape, dtype=None):
        half = shape[0] // 2
        gate_bias = ops.full((half,), self.transform_gate_bias, dtype=dtype)
        return ops.concatenate([self.bias_initializer((half,), dtype=dtype), gate_bias])

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "activation": activations.serialize(self.activation),
                "transform_gate_bias": self.transform_gate_bias,
                "kernel_initializer": initializers.serialize(self.kernel_initializer),
                "bias_initializer": initializers.serialize(self.bias_initializer),
            }
        )
        return config
