import math

import keras
from keras import activations, layers, ops

from keras_lt.backend import check_positive_integer
from keras_lt.layers.residual_block import DATA_FORMATS
from keras_lt.models.base_model import BaseModel
from keras_lt.ops import is_id, nan_unless, scale_pixels, to_channels_last

ACTIVATIONS = ("softmax", None)


class ImageClassifier(BaseModel):
    """Base of the models that turn images into classes: pixels, data formats, the classifier, its loss and export.

    A model that is a row of layers says which, `_make_layers(shape)`; another one builds its features and gives their
    shape, `_build_features(shape)`, and computes them, `_features(images, training)`. All have the channels last,
    whatever the data format outside.
    """

    # Whether images of any height and width pass, also after the first.
    any_size = False

    def __init__(self, num_classes, data_format, classifier_activation, image_shape, **kwargs):
        super().__init__(**kwargs)
        self.num_classes = check_positive_integer("num_classes", num_classes)
        self.data_format = keras.config.image_data_format() if data_format is None else data_format
        self.classifier_activation = classifier_activation
        self.image_shape = self._check_image_shape(image_shape)
        self.image_size = None  # height, width and channels of the images it is built for
        if self.data_format not in DATA_FORMATS:
            raise ValueError(f"`data_format` must be one of {DATA_FORMATS}. Received: data_format={data_format!r}")
        if classifier_activation not in ACTIVATIONS:
            raise ValueError(
                f"`classifier_activation` must be one of {ACTIVATIONS}. "
                f"Received: classifier_activation={classifier_activation!r}"
            )

    def build(self, input_shape):
        if self.built:
            return
        self.image_size = self._check_shape(input_shape)
        channels_axis = 1 if self.data_format == "channels_first" else 3
        axes = {channels_axis: self.image_size[2]} if self.any_size else dict(enumerate(input_shape[1:], 1))
        features_shape = self._build_features((None, *self.image_size))
        self.classifier = layers.Dense(self.num_classes, dtype=self.dtype_policy, name="classifier")
        self.classifier.build(features_shape)
        self.input_spec = layers.InputSpec(ndim=4, axes=axes)
        self.finish_build()

    def __call__(self, inputs, *args, **kwargs):
        # Keras checks the shape, too, but does not say which axis grey images lack, or what the data format is.
        if hasattr(inputs, "shape"):
            self._check_inputs(inputs.shape)
        return super().__call__(inputs, *args, **kwargs)

    def call(self, inputs, return_features=False, training=None):
        self._check_inputs(inputs.shape)  # Keras on JAX trains and predicts without `__call__`
        images = to_channels_last(scale_pixels(inputs, self.compute_dtype), self.data_format)
        x = self._features(images, training)
        # On a CPU, TensorFlow's relu and max-pool make numbers of NaN.
        finite = ops.all(ops.abs(images) < math.inf, axis=(1, 2, 3))
        x = nan_unless(ops.expand_dims(finite, 1), x)
        if return_features:
            return x
        x = self.classifier(x)  # (B, num_classes)
        if self._is_half():
            x = ops.cast(x, "float32")
        return activations.softmax(x) if self.classifier_activation else x

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.num_classes)

    def compute_output_spec(self, inputs, return_features=False, training=None):
        if return_features:
            return keras.KerasTensor((inputs.shape[0], self.classifier.kernel.shape[0]), dtype=self.compute_dtype)
        dtype = "float32" if self._is_half() else self.compute_dtype
        return keras.KerasTensor((inputs.shape[0], self.num_classes), dtype=dtype)

    def compile(self, optimizer="auto", loss="auto", loss_weights=None, metrics="auto", **kwargs):
        """Configure the model for training; see `keras.Model.compile`.

        Args:
            optimizer: Optimizer. Defaults to `"auto"`, that is `SmoothedRMS()`, the sources' update.
            loss: Loss. Defaults to `"auto"`, the cross-entropy of class ids that fits `classifier_activation`.
            loss_weights: As in Keras.
            metrics: As in Keras. Defaults to `"auto"`, that is `["accuracy"]`.
            **kwargs: As in Keras. `jit_compile="auto"` is Keras's own choice: on TensorFlow, XLA on a GPU and none on a
                CPU, where it makes convolutions slower.
        """
        super().compile(
            optimizer, loss, loss_weights=loss_weights, metrics=["accuracy"] if metrics == "auto" else metrics, **kwargs
        )

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        sparse = keras.losses.SparseCategoricalCrossentropy
        if y is None or not (isinstance(self.loss, sparse) or self.loss == "sparse_categorical_crossentropy"):
            return super().compute_loss(x, y, y_pred, sample_weight, training=training)
        if len(y.shape) == 2 and y.shape[1] == self.num_classes > 1:
            raise ValueError(
                f"Labels must be class ids, of shape (B,). Received: labels of shape {tuple(y.shape)}. For one-hot "
                'labels take `compile(loss="categorical_crossentropy")`, or keras.losses.CategoricalCrossentropy'
            )
        loss = super().compute_loss(x, y, y_pred, sample_weight, training=training)
        # Keras on JAX would leave labels out of range out of the loss.
        return nan_unless(ops.all(is_id(y, self.num_classes)), loss)

    def export(self, filepath, format="tf_saved_model", verbose=None, input_signature=None, **kwargs):
        """Write the model for inference; see `keras.Model.export`.

        Args:
            filepath: As in Keras.
            format: As in Keras.
            verbose: As in Keras.
            input_signature: As in Keras. Defaults to `None`, that is `images`, float32 of any batch of one or more in
                the model's own data format.
            **kwargs: As in Keras.

        Raises:
            ValueError: If the model is not built, or does not come out right in that format: half precision is for
                `"tf_saved_model"`, quantized layers for that and `"onnx"`.
        """
        if input_signature is None:
            input_signature = [layers.InputSpec(shape=self.batch_shape, dtype="float32", name="images")]
        super().export(filepath, format=format, verbose=verbose, input_signature=input_signature, **kwargs)

    @property
    def batch_shape(self):
        """Shape of the images that the model takes, in its data format, `None` for what may be any."""
        if not self.built:
            raise ValueError("The model has no weights yet. Call it once, `fit` it, or make it with `image_shape`")
        return (None, *(self.input_spec.axes.get(axis) for axis in (1, 2, 3)))

    def _build_features(self, shape):
        self.feature_layers = self._make_layers(shape)
        for layer in self.feature_layers:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)
        return shape

    def _features(self, images, training):
        x = images
        for layer in self.feature_layers:
            x = layer(x)
        return x

    def _build_if_shape_is_known(self):
        """The last line of each model's `__init__`."""
        if self.image_shape is not None:
            self.build((None, *self.image_shape))

    def _check_shape(self, input_shape):
        """Height, width and channels of the images, in that order."""
        self._check_rank(input_shape)
        shape = tuple(input_shape)
        if self.data_format == "channels_first":
            shape = (shape[0], *shape[2:], shape[1])
        known = shape[3:] if self.any_size else shape[1:]
        if None in known or 0 in shape[1:]:
            raise ValueError(
                f"Images must have known sizes above 0, ({self._axes_names()}). Received: {tuple(input_shape)}"
            )
        return shape[1:]

    def _check_inputs(self, shape):
        self._check_rank(shape)
        if 0 in tuple(shape)[1:]:
            raise ValueError(f"Images must not be empty. Received: images of shape {tuple(shape)}")
        if self.built and any(shape[axis] not in (None, size) for axis, size in self.input_spec.axes.items()):
            raise ValueError(
                f"Images must have the shape {self.batch_shape}, (batch, {self._axes_names()}), None being any size. "
                f"Received: {tuple(shape)}. The model's `data_format` is {self.data_format}"
            )

    def _check_rank(self, shape):
        # TensorFlow gives up the rank when images of one come after those of another.
        rank = shape.rank if hasattr(shape, "rank") else len(shape)
        if rank != 4:
            raise ValueError(
                f"Images must have the shape (batch, {self._axes_names()}) (`data_format` is {self.data_format}). "
                f"Received: {'images of several ranks' if rank is None else tuple(shape)}. Grey images need an axis "
                "for their one channel, as `images[..., None]` gives it"
            )

    def _check_image_shape(self, image_shape):
        if image_shape is None:
            return None
        sizes = tuple(image_shape) if isinstance(image_shape, (list, tuple)) else ()
        if len(sizes) != 3:
            raise ValueError(
                f"`image_shape` must be ({self._axes_names()}), without the batch; grey images have 1 channel. "
                f"Received: image_shape={image_shape!r}"
            )
        return tuple(
            size if size == 0 else check_positive_integer("image_shape", size, optional=True) for size in sizes
        )

    def _axes_names(self):
        return "channels, height, width" if self.data_format == "channels_first" else "height, width, channels"

    def _is_half(self):
        return self.compute_dtype in ("float16", "bfloat16")

    def _auto_loss(self):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=self.classifier_activation is None)

    def _auto_metrics(self):
        return ["accuracy"]

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "num_classes": self.num_classes,
                "data_format": self.data_format,
                "classifier_activation": self.classifier_activation,
                "image_shape": self.image_shape,
            }
        )
        return config
