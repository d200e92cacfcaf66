import keras
from keras import layers, ops

from keras_lt.backend import check_positive_integers
from keras_lt.layers import ResidualBlock
from keras_lt.layers.residual_block import SHORTCUTS, build_batch_norm, pad_evenly
from keras_lt.models.image_classifier import ImageClassifier

STEMS = ("small", "large")


@keras.saving.register_keras_serializable(package="keras_lt")
class ResNet(ImageClassifier):
    """Stages of residual blocks between a convolution and a mean over all places: images in, probabilities out.

    A relu stands behind the stem and behind each `ResidualBlock`. The first block of each stage but the first halves
    height and width. The published networks are

    - CIFAR's, of depth 20, 32, 56: `blocks=(3, 3, 3)`, `(5, 5, 5)`, `(9, 9, 9)`;
    - ResNet-18: `blocks=(2, 2, 2, 2), filters=(64, 128, 256, 512), stem="large"`;
    - ResNet-50: `blocks=(3, 4, 6, 3), filters=(64, 128, 256, 512), bottleneck=True, stem="large"`.

    Floats are taken as they are, uint8 pixels are divided by 255. Under half precision what comes out is float32. With
    `trainable = False` batch normalisation keeps and uses its statistics also in training.

    Args:
        num_classes: Integer. Number of classes.
        blocks: Tuple of integers. Number of blocks of each stage. Defaults to `(3, 3, 3)`.
        filters: Tuple of integers, one a stage. Filters of its blocks. Defaults to `(16, 32, 64)`.
        shortcut: `"A"`, `"B"` or `"C"`, see `ResidualBlock`. Defaults to `"B"`.
        bottleneck: Boolean. Whether blocks have three convolutions, see `ResidualBlock`. Defaults to `False`.
        stem: `"small"`, a convolution of kernel 3, or `"large"`, one of kernel 7 and a max-pool, each with strides 2.
            Defaults to `"small"`.
        data_format: `"channels_last"` or `"channels_first"`. Defaults to `None`, that is
            `keras.config.image_data_format()`.
        classifier_activation: `"softmax"`, or `None` for logits. Defaults to `"softmax"`.
        image_shape: Tuple of three integers, in the data format, without the batch; height and width may be `None`.
            With it the model is built when it is made, so that `summary()` works at once. Defaults to `None`.

    Call arguments:
        inputs: Tensor of floats or uint8 of shape `(B, height, width, channels)`, or `(B, channels, height, width)`, of
            any height and width.
        return_features: Boolean. Whether to return what goes into the last layer, `(B, filters[-1])`, with a
            bottleneck four times that.
        training: Boolean. Whether batch normalisation uses the statistics of the batch.

    Returns:
        A tensor of shape `(B, num_classes)`.

    Example:

    >>> model = keras_lt.models.ResNet(10, image_shape=(32, 32, 3))
    >>> model(np.random.rand(2, 32, 32, 3)).shape
    (2, 10)

    Reference: He, Zhang, Ren and Sun, "Deep Residual Learning for Image Recognition" (2016).

    Source: S2, residual learning.
    """

    any_size = True

    def __init__(
        self,
        num_classes,
        blocks=(3, 3, 3),
        filters=(16, 32, 64),
        shortcut="B",
        bottleneck=False,
        stem="small",
        data_format=None,
        classifier_activation="softmax",
        image_shape=None,
        **kwargs,
    ):
        super().__init__(num_classes, data_format, classifier_activation, image_shape, **kwargs)
        self.blocks = check_positive_integers("blocks", blocks)
        self.filters = check_positive_integers("filters", filters)
        self.shortcut = shortcut
        self.bottleneck = bottleneck
        self.stem = stem
        if len(self.blocks) != len(self.filters):
            raise ValueError(
                f"There must be one number of filters a stage. Received: blocks={blocks}, filters={filters}"
            )
        if shortcut not in SHORTCUTS:
            raise ValueError(f"`shortcut` must be one of {SHORTCUTS}. Received: shortcut={shortcut!r}")
        if stem not in STEMS:
            raise ValueError(f"`stem` must be one of {STEMS}. Received: stem={stem!r}")
        self._build_if_shape_is_known()

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "blocks": self.blocks,
                "filters": self.filters,
                "shortcut": self.shortcut,
                "bottleneck": self.bottleneck,
                "stem": self.stem,
            }
        )
        return config

    def _build_features(self, shape):
        shape = self._build_stem(shape)
        self.residual_blocks = []
        for stage, (number, filters) in enumerate(zip(self.blocks, self.filters, strict=True)):
            for place in range(number):
                block = ResidualBlock(
                    filters,
                    strides=2 if stage and not place else 1,
                    shortcut=self.shortcut,
                    bottleneck=self.bottleneck,
                    data_format="channels_last",
                    dtype=self.dtype_policy,
                    name=f"stage_{stage}_block_{place}",
                )
                block.build(shape)
                shape = block.compute_output_shape(shape)
                self.residual_blocks.append(block)
        return (None, shape[-1])

    def _features(self, images, training):
        x = self.stem_convolution(pad_evenly(images, self.stem_convolution.kernel_size[0]))
        x = ops.relu(self.stem_norm(x, training=training))
        if self.stem == "large":
            # Behind a relu, zeros around the image are as good as minus infinity.
            x = self.stem_pool(pad_evenly(x, 3))
        for block in self.residual_blocks:
            x = ops.relu(block(x, training=training))
        return ops.mean(x, axis=(1, 2))

    def _build_stem(self, shape):
        large = self.stem == "large"
        self.stem_convolution = layers.Conv2D(
            self.filters[0],
            7 if large else 3,
            strides=2 if large else 1,
            data_format="channels_last",
            use_bias=False,
            kernel_initializer="he_normal",
            dtype=self.dtype_policy,
            name="stem_convolution",
        )
        shape = self._build_padded(self.stem_convolution, shape, self.stem_convolution.kernel_size[0])
        self.stem_norm = build_batch_norm(shape, self.dtype_policy, "stem_norm")
        if large:
            self.stem_pool = layers.MaxPooling2D(
                3, strides=2, data_format="channels_last", dtype=self.dtype_policy, name="stem_pool"
            )
            shape = self._build_padded(self.stem_pool, shape, 3)
        return shape

    def _build_padded(self, layer, shape, kernel_size):
        """Build a layer for images that `pad_evenly` has gone over; returns the shape that comes out."""
        places = (None if size is None else size + kernel_size - 1 for size in shape[1:3])
        shape = (None, *places, shape[3])
        layer.build(shape)
        return layer.compute_output_shape(shape)
