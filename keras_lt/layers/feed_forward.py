import keras
from keras import activations, initializers, layers, ops

from keras_lt.backend import check_positive_integer, check_rate
from keras_lt.layers.composite_layer import CompositeLayer
from keras_lt.layers.initialization import projection_initializer, spawn_initializer
from keras_lt.ops.activations import gelu


@keras.saving.register_keras_serializable(package="keras_lt")
class FeedForward(CompositeLayer):
    """Two dense layers that treat each position alone: widen, apply the activation, come back to the width.

    `Y = W_2 relu(W_1 X + b_1) + b_2`. Gated, one product gives two halves, of which the first, through the activation,
    scales the second: `Y = W_2 (activation(W_g X + b_g) * (W_1 X + b_1)) + b_2`.

    Args:
        intermediate_dim: Integer. Width `F` in between. Defaults to `None`, four times the width of the input.
        activation: Activation function. Defaults to `"relu"`.
        gated: Boolean. Whether the activated half scales the other. Defaults to `False`.
        use_bias: Boolean. Whether the dense layers have biases. Defaults to `True`.
        dropout: Float. Share of the outputs set to 0 in training. Defaults to `0.0`.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the biases. Defaults to `"zeros"`.
        seed: Integer. Seed of the dropout. Defaults to `None`.

    Call arguments:
        inputs: Tensor of shape `(B, T, D)`.
        training: Boolean. Whether dropout is applied.

    Returns:
        A tensor of shape `(B, T, D)`.

    Example:

    >>> layer = keras_lt.layers.FeedForward()
    >>> layer(np.random.rand(2, 7, 32)).shape
    (2, 7, 32)

    Source: S1, `FFN`; S3, `feed_forward`.
    """

    def __init__(
        self,
        intermediate_dim=None,
        activation="relu",
        gated=False,
        use_bias=True,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.intermediate_dim = intermediate_dim
        self.activation = activations.get(activation)
        self.gated = gated
        self.use_bias = use_bias
        self.dropout = dropout
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.seed = seed
        self.intermediate_dim = check_positive_integer("intermediate_dim", intermediate_dim, optional=True)
        check_rate("dropout", dropout)

    def build(self, input_shape):
        hidden_dim = input_shape[-1]
        intermediate_dim = 4 * hidden_dim if self.intermediate_dim is None else self.intermediate_dim
        self.input_spec = layers.InputSpec(ndim=3, axes={-1: hidden_dim})
        halves = [intermediate_dim] * (2 if self.gated else 1)
        self.intermediate = self._build_dense("intermediate", hidden_dim, halves, number=0)
        self.output_projection = self._build_dense("output_projection", intermediate_dim, [hidden_dim], number=2)
        self.dropout_layer = layers.Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy, name="dropout")
        self.finish_build()

    def call(self, inputs, training=None):
        x = self.intermediate(inputs)  # (B, T, F), twice that if gated
        if self.gated:
            gate, x = ops.split(x, 2, axis=-1)
            x = self._activate(gate) * x
        else:
            x = self._activate(x)
        return self.dropout_layer(self.output_projection(x), training=training)

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def _activate(self, x):
        # Keras's own is computed on TensorFlow by an operation that ONNX lacks.
        return gelu(x) if self.activation is activations.gelu else self.activation(x)

    def _build_dense(self, name, input_dim, parts, number):
        dense = layers.Dense(
            sum(parts),
            use_bias=self.use_bias,
            kernel_initializer=projection_initializer(spawn_initializer(self.kernel_initializer, number), parts),
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build((None, None, input_dim))
        return dense

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "intermediate_dim": self.intermediate_dim,
                "activation": activations.serialize(self.activation),
                "gated": self.gated,
                "use_bias": self.use_bias,
                "dropout": self.dropout,
                "kernel_initializer": initializers.serialize(self.kernel_initializer),
                "bias_initializer": initializers.serialize(self.bias_initializer),
                "seed": self.seed,
            }
        )
        return config
