import math

import keras
from keras import activations, layers

from keras_lt.backend import check_number, check_positive_integer
from keras_lt.layers import Highway
from keras_lt.models.image_classifier import ImageClassifier


@keras.saving.register_keras_serializable(package="keras_lt")
class HighwayNetwork(ImageClassifier):
    """A dense layer, then highway layers of the same width: images in, probabilities of classes out.

    Floats are taken as they are, uint8 pixels are divided by 255. Under half precision what comes out is float32.

    Args:
        num_classes: Integer. Number of classes.
        num_layers: Integer. Number of `Highway` layers.
        hidden_dim: Integer. Width of them.
        activation: Activation function. Defaults to `"relu"`.
        transform_gate_bias: Float. What the biases of the gates start at, see `Highway`. Defaults to `-2.0`.
        data_format: `"channels_last"` or `"channels_first"`. Defaults to `None`, that is
            `keras.config.image_data_format()`.
        classifier_activation: `"softmax"`, or `None` for logits. Defaults to `"softmax"`.
        image_shape: Tuple of three integers, in the data format, without the batch. With it the model is built when it
            is made, so that `summary()` works at once. Defaults to `None`, built with the first images.

    Call arguments:
        inputs: Tensor of floats or uint8 of shape `(B, height, width, channels)`, or `(B, channels, height, width)`.
        return_features: Boolean. Whether to return what goes into the last layer, `(B, hidden_dim)`.
        training: Boolean. Of no effect.

    Returns:
        A tensor of shape `(B, num_classes)`.

    Example:

    >>> model = keras_lt.models.HighwayNetwork(10, num_layers=20, hidden_dim=50, image_shape=(28, 28, 1))
    >>> model(np.random.rand(2, 28, 28, 1)).shape
    (2, 10)

    Source: S2, highway networks.
    """

    def __init__(
        self,
        num_classes,
        num_layers,
        hidden_dim,
        activation="relu",
        transform_gate_bias=-2.0,
        data_format=None,
        classifier_activation="softmax",
        image_shape=None,
        **kwargs,
    ):
        super().__init__(num_classes, data_format, classifier_activation, image_shape, **kwargs)
        self.activation = activations.get(activation)
        self.transform_gate_bias = transform_gate_bias
        self.num_layers = check_positive_integer("num_layers", num_layers)
        self.hidden_dim = check_positive_integer("hidden_dim", hidden_dim)
        check_number("transform_gate_bias", transform_gate_bias, -math.inf)
        self._build_if_shape_is_known()

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "num_layers": self.num_layers,
                "hidden_dim": self.hidden_dim,
                "activation": activations.serialize(self.activation),
                "transform_gate_bias": self.transform_gate_bias,
            }
        )
        return config

    def _make_layers(self, shape):
        first = [
            layers.Flatten(data_format="channels_last", dtype=self.dtype_policy, name="flatten"),
            layers.Dense(self.hidden_dim, activation=self.activation, dtype=self.dtype_policy, name="hidden"),
        ]
        return first + [
            Highway(self.activation, self.transform_gate_bias, dtype=self.dtype_policy, name=f"highway_{number}")
            for number in range(self.num_layers)
        ]
