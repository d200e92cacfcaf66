"""Pixels, data formats and the shortcut without weights, element by element."""

import keras
import numpy as np
import pytest

from keras_lt.ops import from_channels_last, scale_pixels, to_channels_last, zero_padding_shortcut
from testing import MODES, assert_close, gradient, run

B, H, W, C = 2, 5, 4, 3


def example():
    return np.random.default_rng(0).normal(size=(B, H, W, C)).astype("float32")


@pytest.mark.parametrize("mode", MODES)
def test_every_byte_becomes_its_share_of_255(mode):
    pixels = np.arange(256, dtype="uint8").reshape(1, 16, 16, 1)
    scaled = run(mode, scale_pixels, pixels, "float32")
    assert scaled.dtype == np.float32
    assert_close(scaled.ravel(), np.array([byte / 255 for byte in range(256)]), 1e-7)
    assert scaled.min() == 0 and scaled.max() == 1


@pytest.mark.parametrize(("dtype", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_bytes_in_half_precision(dtype, bits):
    scaled = scale_pixels(keras.ops.convert_to_tensor(np.arange(256, dtype="uint8")), dtype)
    assert keras.backend.standardize_dtype(scaled.dtype) == dtype
    scaled = keras.ops.convert_to_numpy(keras.ops.cast(scaled, "float32"))
    assert scaled[0] == 0 and scaled[255] == 1
    # one rounding of the quotient; every byte is itself in both types
    np.testing.assert_allclose(scaled, np.arange(256) / 255, rtol=2.0**-bits)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_floats_are_taken_as_they_are(mode, dtype):
    # also those that look like bytes: the rule hangs on the type alone
    images = np.array([-3, 0, 0.5, 1, 255, 1000], dtype)
    scaled = run(mode, scale_pixels, images, "float32")
    assert scaled.dtype == np.float32
    np.testing.assert_array_equal(scaled, images.astype("float32"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["int8", "int32", "bool"])
def test_other_types_are_refused(mode, dtype):
    with pytest.raises(TypeError, match=rf'Received: {dtype}. Convert them with `images.astype\("float32"\)`'):
        run(mode, scale_pixels, np.ones((1, 2, 2, 1), dtype), "float32")


def test_channels_first_are_brought_behind_and_back():
    images = example()
    first = np.empty((B, C, H, W), "float32")
    for b, h, w, c in np.ndindex(B, H, W, C):
        first[b, c, h, w] = images[b, h, w, c]
    np.testing.assert_array_equal(run("eager", to_channels_last, first, "channels_first"), images)
    np.testing.assert_array_equal(run("eager", from_channels_last, images, "channels_first"), first)
    for function in (to_channels_last, from_channels_last):
        np.testing.assert_array_equal(run("eager", function, images, "channels_last"), images)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("filters", "strides"), [(C, 1), (C + 4, 1), (C, 2), (C + 4, 2), (C + 1, 3)])
def test_zero_padding_shortcut_keeps_places_and_adds_zeros(mode, filters, strides):
    images = example()
    expected = np.zeros((B, (H + strides - 1) // strides, (W + strides - 1) // strides, filters), "float32")
    kept = np.zeros_like(images)
    for b, h, w, c in np.ndindex(B, H, W, C):
        if h % strides == 0 and w % strides == 0:
            expected[b, h // strides, w // strides, c] = images[b, h, w, c]
            kept[b, h, w, c] = 1
    np.testing.assert_array_equal(run(mode, zero_padding_shortcut, images, filters, strides), expected)
    np.testing.assert_array_equal(
        gradient(mode, lambda images: zero_padding_shortcut(images, filters, strides), images), kept
    )


@pytest.mark.parametrize(("filters", "strides"), [(C - 1, 1), (C, 0), (C, -1)])
def test_a_shortcut_that_would_lose_channels_or_turn_round_is_refused(filters, strides):
    with pytest.raises(ValueError, match=f"Received: filters={filters}, strides={strides}, inputs of shape"):
        zero_padding_shortcut(keras.ops.convert_to_tensor(example()), filters, strides)


def test_lists_are_images():
    assert_close(keras.ops.convert_to_numpy(scale_pixels([[0.5, 2.0]], "float32")), np.array([[0.5, 2.0]]))
