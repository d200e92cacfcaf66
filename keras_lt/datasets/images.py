import hashlib
import os

import keras
import numpy as np

from keras_lt.backend import check_number
from keras_lt.datasets.lookup import find_file

_MNIST_NAME = "mnist.npz"
_MNIST_ORIGIN = "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz"
_MNIST_SHA256 = "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1"
# Of the bytes of the four arrays: the file is found compressed in more than one way.
_MNIST_ARRAYS_SHA256 = "06b0d1f124c4e5fa796686ade41a9b778edacc8622f2195a352ef479ad44fc16"
_TEST_EVERY = 5


def digits(image_size=28):
    """Reads scikit-learn's 1,797 handwritten digits; nothing is downloaded.

    Every fifth is a test image, the same ones on every machine: 1,438 to train with, 359 to test. Digits of one writer
    are in both parts.

    Args:
        image_size: Integer, at least 8. Height and width to which the images of 8 x 8 are enlarged, bilinearly; `None`
            leaves them as they are. Defaults to `28`.

    Returns:
        `(x_train, y_train), (x_test, y_test)`: images, float32 `(N, image_size, image_size, 1)` from 0, paper, to 1,
        ink; digits, int32 `(N,)`.

    Raises:
        ImportError: If scikit-learn is not installed.

    Example:

    ```python
    (x_train, y_train), (x_test, y_test) = keras_lt.datasets.digits()
    x_train.shape  # (1438, 28, 28, 1)
    ```
    """
    if image_size is not None:
        check_number("image_size", image_size, 8, whole=True)
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError('The digits are those of scikit-learn: pip install "keras_lt[digits]"') from error
    data = load_digits()
    images = (data.images / 16).astype("float32")[..., None]
    if image_size is not None:
        images = keras.ops.image.resize(
            images, (image_size, image_size), interpolation="bilinear", data_format="channels_last"
        )
        images = np.array(keras.ops.convert_to_numpy(images))
    is_test = np.arange(len(images)) % _TEST_EVERY == _TEST_EVERY - 1
    labels = data.target.astype("int32")
    return (images[~is_test], labels[~is_test]), (images[is_test], labels[is_test])


def mnist(path=None):
    """Reads MNIST: 60,000 handwritten digits to train with, 10,000 to test.

    It is looked for in this order: at `path`; as `mnist.npz` in the folder that the environment variable
    `KERAS_LT_DATA` names; in the cache of Keras (`~/.keras/datasets`); on the internet, from where it is downloaded
    once into that cache. What is found is compared with a known SHA-256, except at `path`: that file is the caller's
    own choice.

    Args:
        path: Path of a file of NumPy arrays, `x_train`, `y_train`, `x_test`, `y_test`, with grey images of uint8,
            `(N, height, width)`, and labels of integers. Defaults to `None`: found or downloaded as said above.

    Returns:
        `(x_train, y_train), (x_test, y_test)`: images, float32 `(N, 28, 28, 1)` from 0, paper, to 1, ink; digits, int32
        `(N,)`.

    Raises:
        FileNotFoundError: If there is no file at `path`, or if MNIST is nowhere to be found and cannot be downloaded;
            it says what can be done.
        ValueError: If the file at `path` holds something else, or the one in `KERAS_LT_DATA` is another one.

    Example:

    ```python
    (x_train, y_train), (x_test, y_test) = keras_lt.datasets.mnist()
    x_train.shape  # (60000, 28, 28, 1)
    ```
    """
    if path is None:
        path = find_file(
            "MNIST",
            _MNIST_NAME,
            _MNIST_ORIGIN,
            _MNIST_SHA256,
            "use the digits of scikit-learn, keras_lt.datasets.digits()",
            contents=(_arrays_sha256, _MNIST_ARRAYS_SHA256),
        )
    parts = _read(path)
    for images, labels in parts:
        if images.ndim != 3 or labels.shape != images.shape[:1] or not images.size:
            raise ValueError(
                f"{os.fspath(path)} must hold grey images, (N, height, width), and as many labels. "
                f"Received: images of shape {images.shape}, labels of shape {labels.shape}"
            )
        if images.dtype != "uint8" or labels.dtype.kind not in "iu":
            raise ValueError(
                f"{os.fspath(path)} must hold images of uint8, from 0 to 255, and labels of integers. "
                f"Received: images of {images.dtype}, labels of {labels.dtype}"
            )
        if labels.min() < 0 or labels.max() >= 2**31:
            raise ValueError(
                f"{os.fspath(path)} must hold labels from 0 on. Received: labels from {labels.min()} to {labels.max()}"
            )
    sizes = [images.shape[1:] for images, _ in parts]
    if sizes[0] != sizes[1]:
        raise ValueError(
            f"{os.fspath(path)} must hold images of one size. Received: {sizes[0]} to train with, {sizes[1]} to test"
        )
    return tuple((images[..., None].astype("float32") / 255, labels.astype("int32")) for images, labels in parts)


def _read(path):
    names = ("x_train", "y_train", "x_test", "y_test")
    try:
        with np.load(path, allow_pickle=False) as file:
            x_train, y_train, x_test, y_test = (file[name] for name in names)
    except FileNotFoundError:
        raise
    except Exception as error:  # of many classes: no archive, a broken one, other arrays, pickled objects
        raise ValueError(
            f"{os.fspath(path)} must be a file of NumPy arrays, {', '.join(names)}, as `numpy.savez` writes it. "
            f"Received: {error}"
        ) from error
    return (x_train, y_train), (x_test, y_test)


def _arrays_sha256(path):
    return hashlib.sha256(b"".join(array.tobytes() for part in _read(path) for array in part)).hexdigest()
