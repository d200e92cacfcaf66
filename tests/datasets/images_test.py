import hashlib
import struct
import sys

import keras
import numpy as np
import pytest

from keras_lt.datasets import digits, mnist
from testing import SHARED, needs_shared

# Published with the files of MNIST, of each of the four unpacked.
MD5 = [
    ["6bbc9ace898e44ae57da46a324031adb", "a25bea736e30d166cdddb491f175f624"],
    ["2646ac647ad5339dbf082846283269ea", "27ae3e4e09519cfbb04c329615203637"],
]


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def get_file(*args, **kwargs):
        raise Exception("URL fetch failure on somewhere: None -- [Errno -2] Name or service not known")

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    monkeypatch.delenv("KERAS_LT_DATA", raising=False)


@pytest.fixture
def arrays():
    random = np.random.default_rng(0)
    return {
        "x_train": random.integers(0, 256, (5, 4, 3), "uint8"),
        "y_train": np.arange(5, dtype="uint8"),
        "x_test": random.integers(0, 256, (2, 4, 3), "uint8"),
        "y_test": np.array([7, 9], "uint8"),
    }


def idx_file(array):
    """The array as a file of MNIST's own format."""
    return struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def test_digits():
    (x_train, y_train), (x_test, y_test) = digits()
    assert (x_train.shape, x_test.shape) == ((1438, 28, 28, 1), (359, 28, 28, 1))
    assert (x_train.dtype, y_train.dtype) == ("float32", "int32")
    assert (y_train.shape, y_test.shape) == ((1438,), (359,))
    assert min(x_train.min(), x_test.min()) == 0
    assert max(x_train.max(), x_test.max()) == 1
    assert set(y_test) == set(range(10))
    np.testing.assert_array_equal(digits()[0][0], x_train)


def test_digits_are_those_of_scikit_learn():
    data = pytest.importorskip("sklearn.datasets").load_digits()
    (x_train, y_train), (x_test, y_test) = digits(image_size=None)
    images, labels = np.empty((1797, 8, 8)), np.empty(1797)
    for part, (x, y) in enumerate([(x_test, y_test), (x_train, y_train)]):
        places = [place for place in range(1797) if (place % 5 != 4) == part]
        images[places], labels[places] = x[..., 0] * 16, y
    np.testing.assert_array_equal(images, data.images)
    np.testing.assert_array_equal(labels, data.target)


def test_digits_are_enlarged_bilinearly():
    interpolate = pytest.importorskip("scipy.ndimage").zoom
    small, large = digits(image_size=None)[1][0], digits(image_size=12)[1][0]
    expected = interpolate(small[:9], (1, 1.5, 1.5, 1), order=1, mode="nearest", grid_mode=True)
    np.testing.assert_allclose(large[:9], expected, atol=1e-6)


@pytest.mark.parametrize("size", [7, 28.0, (28, 28), True, "28"])
def test_wrong_sizes_of_digits(size):
    with pytest.raises(ValueError, match=r"`image_size` must be an integer, 8 or more"):
        digits(size)


def test_digits_without_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ImportError, match=r"keras_lt\[digits\]"):
        digits()


@needs_shared
def test_mnist(monkeypatch):
    monkeypatch.setenv("KERAS_LT_DATA", str(SHARED / "data"))
    data = mnist()
    for (images, labels), sums in zip(data, MD5, strict=True):
        assert images.shape == (len(labels), 28, 28, 1)
        assert (images.dtype, labels.dtype) == ("float32", "int32")
        for array, expected in zip((images[..., 0] * 255, labels), sums, strict=True):
            assert hashlib.md5(idx_file(np.rint(array).astype("uint8"))).hexdigest() == expected
    assert data[0][0].max() == 1


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_path_is_read_as_it_is(tmp_path, arrays, save):
    save(tmp_path / "mine.npz", **arrays)
    (x_train, y_train), (x_test, y_test) = mnist(tmp_path / "mine.npz")
    np.testing.assert_allclose(x_train[..., 0], arrays["x_train"] / 255.0, atol=1e-7)
    np.testing.assert_allclose(x_test[..., 0], arrays["x_test"] / 255.0, atol=1e-7)
    np.testing.assert_array_equal(y_train, arrays["y_train"])
    np.testing.assert_array_equal(y_test, arrays["y_test"])


def test_wrong_files(tmp_path, arrays):
    with pytest.raises(FileNotFoundError, match=r"nothing\.npz"):
        mnist(tmp_path / "nothing.npz")
    path = tmp_path / "mnist.npz"
    path.write_text("no archive")
    with pytest.raises(ValueError, match=r"mnist\.npz must be a file of NumPy arrays, x_train"):
        mnist(path)
    np.savez(path, **{**arrays, "x_train": np.array([None])})
    with pytest.raises(ValueError, match=r"mnist\.npz must be a file of NumPy arrays, x_train"):
        mnist(path)
    np.savez(path, x_train=arrays["x_train"])
    with pytest.raises(ValueError, match=r"must be a file of NumPy arrays.*y_train"):
        mnist(path)
    np.savez(path, **{**arrays, "y_test": arrays["y_test"][:1]})
    with pytest.raises(ValueError, match=r"as many labels\. Received: images of shape \(2, 4, 3\).*\(1,\)"):
        mnist(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((5, 4, 3))}, "images of uint8.* Received: images of float64, labels of uint8"),
        ({"x_test": np.zeros((2, 4, 3), "uint16")}, "images of uint16"),
        ({"x_test": np.full((2, 4, 3), "ink")}, "images of <U3"),
        ({"y_train": np.arange(5) + 0.5}, "labels of float64"),
        ({"y_train": np.arange(5) - 1}, "labels from -1 to 3"),
        ({"y_test": np.array([0, 2**40])}, "labels from 0 to 1099511627776"),
        ({"x_test": np.zeros((2, 5, 3), "uint8")}, r"one size. Received: \(4, 3\) to train with, \(5, 3\) to test"),
        ({"x_test": np.zeros((0, 4, 3), "uint8"), "y_test": np.zeros(0, "uint8")}, r"images of shape \(0, 4, 3\)"),
    ],
)
def test_wrong_arrays(tmp_path, arrays, changes, message):
    np.savez(tmp_path / "mnist.npz", **{**arrays, **changes})
    with pytest.raises(ValueError, match=rf"mnist\.npz must hold .*{message}"):
        mnist(tmp_path / "mnist.npz")


def test_another_file_in_the_folder_of_the_environment(tmp_path, monkeypatch, arrays):
    np.savez(tmp_path / "mnist.npz", **arrays)
    monkeypatch.setenv("KERAS_LT_DATA", str(tmp_path))
    with pytest.raises(ValueError, match=r"KERAS_LT_DATA, must be MNIST.*path="):
        mnist()


def test_offline_the_error_names_the_ways_out():
    with pytest.raises(FileNotFoundError) as error:
        mnist()
    for words in ("MNIST is not", "path=", "KERAS_LT_DATA", "mnist.npz", "https://", "datasets.digits()"):
        assert words in str(error.value)


def test_otherwise_keras_is_asked_once(tmp_path, monkeypatch, arrays):
    calls = []

    def get_file(fname, origin, file_hash):
        calls.append((fname, file_hash))
        np.savez(tmp_path / fname, **arrays)
        return str(tmp_path / fname)

    monkeypatch.setattr(keras.utils, "get_file", get_file)
    assert mnist()[0][0].shape == (5, 4, 3, 1)
    assert calls == [("mnist.npz", "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1")]
