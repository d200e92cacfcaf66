import keras
from keras import layers

from keras_lt.backend import check_positive_integers
from keras_lt.models.image_classifier import ImageClassifier


@keras.saving.register_keras_serializable(package="keras_lt")
class LeNet(ImageClassifier):
    """Convolutions and max-pooling in turn, then dense layers: images in, probabilities of classes out.

    `X^1 = MaxPool(relu(Conv^1(X^0)))`, `X^2 = MaxPool(relu(Conv^2(X^1)))`, `X^3 = relu(W^3 X^2 + b^3)`,
    `O = softmax(W^4 X^3 + b^4)`. Convolutions are cross-correlations without padding, pools do not overlap; what does
    not fill a pool at the lower and right border is left out. The defaults are S1's network; `hidden_units=(120, 84)`
    are the sizes of LeNet-5.

    Floats are taken as they are, uint8 pixels are divided by 255. Under half precision what comes out is float32.
    Channels first are brought behind height and width at the door, so that both formats have the same weights and give
    the same numbers on every device.

    Args:
        num_classes: Integer. Number of classes. Defaults to `10`.
        filters: Tuple of integers. Number of filters of each convolution. Defaults to `(6, 16)`.
        kernel_size: Integer, or a pair of height and width. Size of the kernels. Defaults to `5`.
        pool_size: Integer, or a pair of height and width. Size and strides of the pools. Defaults to `2`.
        hidden_units: Tuple of integers. Width of each dense layer before the last. Defaults to `(120,)`.
        flatten: Boolean. Whether the image becomes a vector, in the order height, width, channels, before the first
            dense layer, or that layer is one contraction over the three axes. With reshaped weights the numbers are the
            same. Defaults to `True`.
        data_format: `"channels_last"`, `(B, height, width, channels)`, or `"channels_first"`, S1's
            `(B, channels, height, width)`. Defaults to `None`, that is `keras.config.image_data_format()`.
        classifier_activation: `"softmax"`, or `None` for logits. Defaults to `"softmax"`.
        image_shape: Tuple of three integers, in the data format, without the batch. With it the model is built when it
            is made, so that `summary()` works at once. Defaults to `None`, built with the first images.

    Call arguments:
        inputs: Tensor of floats or uint8 of shape `(B, height, width, channels)`, or `(B, channels, height, width)`.
        return_features: Boolean. Whether to return what goes into the last layer, `(B, hidden_units[-1])`.
        training: Boolean. Of no effect.

    Returns:
        A tensor of shape `(B, num_classes)`.

    Example:

    >>> model = keras_lt.models.LeNet(image_shape=(28, 28, 1))
    >>> model.count_params()
    34622
    >>> model(np.random.rand(2, 28, 28, 1)).shape
    (2, 10)

    ```python
    model.compile()  # SmoothedRMS, cross-entropy of class ids, accuracy
    model.fit(images, labels)
    ```

    Source: S1, "LeNet".
    """

    def __init__(
        self,
        num_classes=10,
        filters=(6, 16),
        kernel_size=5,
        pool_size=2,
        hidden_units=(120,),
        flatten=True,
        data_format=None,
        classifier_activation="softmax",
        image_shape=None,
        **kwargs,
    ):
        super().__init__(num_classes, data_format, classifier_activation, image_shape, **kwargs)
        self.filters = check_positive_integers("filters", filters)
        self.kernel_size = _pair("kernel_size", kernel_size)
        self.pool_size = _pair("pool_size", pool_size)
        self.hidden_units = check_positive_integers("hidden_units", hidden_units)
        self.flatten = flatten
        self._build_if_shape_is_known()

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "filters": self.filters,
                "kernel_size": self.kernel_size,
                "pool_size": self.pool_size,
                "hidden_units": self.hidden_units,
                "flatten": self.flatten,
            }
        )
        return config

    def _make_layers(self, shape):
        self._check_size(shape)
        stages = []
        for number, filters in enumerate(self.filters):
            convolution = layers.Conv2D(
                filters,
                self.kernel_size,
                activation="relu",
                data_format="channels_last",
                dtype=self.dtype_policy,
                name=f"convolution_{number}",
            )
            pool = layers.MaxPooling2D(
                self.pool_size, data_format="channels_last", dtype=self.dtype_policy, name=f"pool_{number}"
            )
            stages += [convolution, pool]
        if self.flatten:
            flatten = layers.Flatten(data_format="channels_last", dtype=self.dtype_policy, name="flatten")
            first = [flatten, self._dense(0)]
        else:
            first = [
                layers.EinsumDense(
                    "bhwc,hwcd->bd",
                    self.hidden_units[0],
                    activation="relu",
                    bias_axes="d",
                    dtype=self.dtype_policy,
                    name="hidden_0",
                )
            ]
        return stages + first + [self._dense(number) for number in range(1, len(self.hidden_units))]

    def _dense(self, number):
        return layers.Dense(
            self.hidden_units[number], activation="relu", dtype=self.dtype_policy, name=f"hidden_{number}"
        )

    def _check_size(self, shape):
        """A `ValueError` unless something is left of the image after all convolutions and pools."""
        smallest = [1, 1]
        for _ in self.filters:
            smallest = [
                size * pool + kernel - 1
                for size, pool, kernel in zip(smallest, self.pool_size, self.kernel_size, strict=True)
            ]
        if shape[1] < smallest[0] or shape[2] < smallest[1]:
            raise ValueError(
                f"Images must be at least {smallest[0]} x {smallest[1]} (height x width) for {len(self.filters)} "
                f"convolutions of {self.kernel_size} and pools of {self.pool_size}. Received: {shape[1]} x {shape[2]}"
            )


def _pair(name, value):
    return check_positive_integers(name, value if isinstance(value, (list, tuple)) else (value, value), length=2)
