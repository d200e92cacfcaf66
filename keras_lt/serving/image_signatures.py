"""What a served model of images does, as functions of TensorFlow tensors."""

import keras
import numpy as np
from keras import ops

from keras_lt.ops import from_channels_last

# ITU-R BT.601, as image libraries weigh the colours.
GREY = (0.299, 0.587, 0.114)


def endpoints(model, class_names=None):
    """The functions of a model of images by the names of their signatures, each with what it takes."""
    import tensorflow as tf

    images = tf.TensorSpec(model.batch_shape, "float32", name="images")
    names = _check_names(model, class_names)
    found = {"serving_default": (lambda images: predict(model, images), [images])}
    if names is not None:
        files = tf.TensorSpec([None], "string", name="images")
        found["classify"] = (lambda images: classify(model, names, images), [files])
    return found


def predict(model, images):
    """Probabilities, or logits where the model has no activation at its end, `(B, num_classes)`, in float32."""
    name = "logits" if model.classifier_activation is None else "probabilities"
    return {name: _outputs(model, images)}


def classify(model, class_names, files):
    """The likeliest class of each encoded image, strings `(B,)`, and the probabilities, `(B, num_classes)`."""
    import tensorflow as tf

    height, width, channels = model.image_size

    def decode(file):
        return decode_image(file, height, width, channels)

    images = tf.map_fn(decode, files, fn_output_signature=tf.TensorSpec([height, width, channels], "float32"))
    outputs = _outputs(model, from_channels_last(images, model.data_format))
    if model.classifier_activation is None:
        outputs = ops.softmax(outputs)
    return {"labels": tf.gather(tf.constant(class_names), tf.argmax(outputs, axis=1)), "probabilities": outputs}


def decode_image(file, height, width, channels):
    """The image in an encoded file, from 0 to 1, `(height, width, channels)`."""
    import tensorflow as tf

    image = tf.io.decode_image(file, channels=3, expand_animations=False)
    image = tf.cast(image, "float32")
    if channels == 1:
        image = tf.reduce_sum(image * GREY, axis=-1, keepdims=True)
    return tf.image.resize(image, (height, width), antialias=True) / 255


def _outputs(model, images):
    if keras.config.backend() != "tensorflow":
        return ops.cast(model(images, training=False), "float32")
    import tensorflow as tf

    # On a CPU, TensorFlow's fused convolution gives an empty batch a wrong shape, and the next one fails. It would take
    # the place of a `tf.pad`, too.
    shape = tf.shape(images)
    extra = tf.zeros(tf.concat([[tf.cast(tf.equal(shape[0], 0), tf.int32)], shape[1:]], axis=0))
    outputs = model(tf.concat([images, extra], axis=0), training=False)
    return ops.cast(outputs, "float32")[: shape[0]]


def _check_names(model, class_names):
    """The labels, or `None` where the model can have no `classify`."""
    height, width, channels = model.image_size
    reason = None
    if keras.config.backend() != "tensorflow":
        reason = "it is written from the TensorFlow backend only"
    elif channels not in (1, 3):
        reason = f"image files have one or three channels, the model takes {channels}"
    elif height is None or width is None:
        reason = "the model was made for images of any size; make it with an `image_shape`"
    if reason is not None:
        if class_names is not None:
            raise ValueError(f"`class_names` are for the signature `classify`: {reason}. Received: {class_names!r}")
        return None
    names = list(map(str, range(model.num_classes))) if class_names is None else class_names
    is_sequence = isinstance(names, (list, tuple, np.ndarray)) and len(names) == model.num_classes
    if not is_sequence or not all(isinstance(name, str) for name in names):
        raise ValueError(f"`class_names` must be {model.num_classes} strings, one a class. Received: {class_names!r}")
    return [str(name) for name in names]
