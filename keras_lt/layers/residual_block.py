import keras
from keras import initializers, layers, ops

from keras_lt.backend import check_positive_integer
from keras_lt.layers.composite_layer import CompositeLayer
from keras_lt.layers.initialization import spawn_initializer
from keras_lt.ops import from_channels_last, to_channels_last, zero_padding_shortcut

SHORTCUTS = ("A", "B", "C")
EXPANSION = 4
DATA_FORMATS = ("channels_last", "channels_first")


@keras.saving.register_keras_serializable(package="keras_lt")
class ResidualBlock(CompositeLayer):
    """Convolutions that learn what to add to their inputs.

    `H(x) = F(x) + x`, where `F` is convolution, batch normalisation, relu, convolution, batch normalisation; with a
    bottleneck three convolutions, of kernels 1, `kernel_size` and 1, the last of four times as many filters. There is
    no activation behind the sum, so that `dH/dx = F' + 1` as it stands; `keras_lt.models.ResNet` puts a relu behind
    each block, as He et al. do. Where `F(x)` and `x` differ in shape, a shortcut takes the place of `x`:

    - `"A"`: every `strides`-th place of `x`, and zeros for the new channels; no weights;
    - `"B"`: a convolution of kernel 1 and batch normalisation where shapes differ, else `x`;
    - `"C"`: that convolution everywhere.

    Padding is the same on both sides, also with strides, as in the published networks.

    Args:
        filters: Integer. Filters of the convolutions; with a bottleneck of all but the last, which has four times as
            many.
        strides: Integer. Strides of the convolution of `kernel_size` that comes first. Defaults to `1`.
        shortcut: `"A"`, `"B"` or `"C"`. Defaults to `"B"`.
        bottleneck: Boolean. Whether there are three convolutions in place of two. Defaults to `False`.
        kernel_size: Integer. Height and width of the kernels. Defaults to `3`.
        data_format: `"channels_last"` or `"channels_first"`. Defaults to `None`, that is
            `keras.config.image_data_format()`.
        kernel_initializer: Initializer of the kernels. Defaults to `"he_normal"`.

    Call arguments:
        inputs: Tensor of shape `(B, height, width, channels)`, or `(B, channels, height, width)`.
        training: Boolean. Whether batch normalisation uses the statistics of the batch. It does not where the block is
            not trainable.

    Returns:
        A tensor like the inputs, with `filters` channels (with a bottleneck four times that), height and width divided
        by `strides` and rounded up.

    Example:

    >>> layer = keras_lt.layers.ResidualBlock(filters=8, strides=2)
    >>> layer(np.random.rand(2, 7, 7, 3)).shape
    (2, 4, 4, 8)

    Reference: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition" (2016).

    Source: S2, residual learning.
    """

    def __init__(
        self,
        filters,
        strides=1,
        shortcut="B",
        bottleneck=False,
        kernel_size=3,
        data_format=None,
        kernel_initializer="he_normal",
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.filters = filters
        self.strides = strides
        self.shortcut = shortcut
        self.bottleneck = bottleneck
        self.kernel_size = kernel_size
        self.data_format = keras.config.image_data_format() if data_format is None else data_format
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.input_spec = layers.InputSpec(ndim=4)
        for name in ("filters", "strides", "kernel_size"):
            setattr(self, name, check_positive_integer(name, getattr(self, name)))
        if shortcut not in SHORTCUTS:
            raise ValueError(f"`shortcut` must be one of {SHORTCUTS}. Received: shortcut={shortcut!r}")
        if self.data_format not in DATA_FORMATS:
            raise ValueError(f"`data_format` must be one of {DATA_FORMATS}. Received: data_format={data_format!r}")

    def build(self, input_shape):
        channels_axis = 1 if self.data_format == "channels_first" else 3
        channels = input_shape[channels_axis]
        if channels is None:
            raise ValueError(f"The channels must have a known size. Received: input_shape={tuple(input_shape)}")
        self.input_spec = layers.InputSpec(ndim=4, axes={channels_axis: channels})
        output_channels = self._output_channels()
        if self.shortcut == "A" and output_channels < channels:
            raise ValueError(
                f'`shortcut="A"` only adds channels. Received: {channels} channels for a block that gives '
                f'{output_channels}. Take shortcut="B"'
            )
        forms = [(self.filters, self.kernel_size, self.strides), (self.filters, self.kernel_size, 1)]
        if self.bottleneck:
            forms = [(self.filters, 1, 1), forms[0], (output_channels, 1, 1)]
        self.convolutions, self.norms = [], []
        input_channels = channels
        for number, form in enumerate(forms):
            convolution, norm = self._build_convolution(f"{number}", input_channels, *form, number=number)
            self.convolutions.append(convolution)
            self.norms.append(norm)
            input_channels = form[0]
        self.projection = None
        differs = self.strides > 1 or output_channels != channels
        if self.shortcut == "C" or (self.shortcut == "B" and differs):
            self.projection, self.projection_norm = self._build_convolution(
                "projection", channels, output_channels, 1, self.strides, number=len(forms)
            )
        self.finish_build()

    def call(self, inputs, training=None):
        inputs = to_channels_last(ops.cast(inputs, self.compute_dtype), self.data_format)
        x = inputs
        for number, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = ops.relu(x) if number else x
            if convolution.padding == "valid":
                x = pad_evenly(x, self.kernel_size)
            x = norm(convolution(x), training=training)
        if self.projection is None:
            shortcut = zero_padding_shortcut(inputs, self._output_channels(), self.strides)
        else:
            shortcut = self.projection_norm(self.projection(inputs), training=training)
        return from_channels_last(x + shortcut, self.data_format)

    def compute_output_shape(self, input_shape):
        first = self.data_format == "channels_first"
        places = input_shape[2:] if first else input_shape[1:3]
        places = [None if size is None else -(-size // self.strides) for size in places]
        channels = [self._output_channels()]
        return (input_shape[0], *(channels + places if first else places + channels))

    def _output_channels(self):
        return self.filters * (EXPANSION if self.bottleneck else 1)

    def _build_convolution(self, name, input_channels, filters, kernel_size, strides, number):
        convolution = layers.Conv2D(
            filters,
            kernel_size,
            strides=strides,
            # Keras would pad more behind than before where the strides are above 1.
            padding="valid" if strides > 1 and kernel_size > 1 else "same",
            data_format="channels_last",
            use_bias=False,
            kernel_initializer=spawn_initializer(self.kernel_initializer, number),
            dtype=self.dtype_policy,
            name=f"convolution_{name}",
        )
        convolution.build((None, None, None, input_channels))
        return convolution, build_batch_norm((None, None, None, filters), self.dtype_policy, f"norm_{name}")

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "filters": self.filters,
                "strides": self.strides,
                "shortcut": self.shortcut,
                "bottleneck": self.bottleneck,
                "kernel_size": self.kernel_size,
                "data_format": self.data_format,
                "kernel_initializer": initializers.serialize(self.kernel_initializer),
            }
        )
        return config


def pad_evenly(images, kernel_size):
    """Zeros around images, `(B, height, width, channels)`: a convolution of that kernel, unpadded, keeps their size."""
    before = (kernel_size - 1) // 2
    sides = (before, kernel_size - 1 - before)
    return ops.pad(images, ((0, 0), sides, sides, (0, 0)))


def build_batch_norm(shape, dtype, name):
    """Batch normalisation of the last axis as the published residual networks have it, built."""
    norm = layers.BatchNormalization(momentum=0.9, epsilon=1e-5, dtype=dtype, name=name)
    norm.build(shape)
    return norm
