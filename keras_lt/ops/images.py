from keras import backend, ops


def scale_pixels(images, dtype):
    """Turn the pixels of images into numbers of a floating-point type.

    Floats are taken as they are; uint8 from 0 to 255, as image files hold them, become 0 to 1. The rule hangs on the
    type alone, so that it is the same inside a compiled function.

    Args:
        images: Tensor of floats or uint8.
        dtype: String. A floating-point type.

    Returns:
        A tensor of the same shape.

    Raises:
        TypeError: If the images are of another type.
    """
    images = ops.convert_to_tensor(images)
    found = backend.standardize_dtype(images.dtype)
    if found == "uint8":
        return ops.cast(images, dtype) / 255
    if not backend.is_float_dtype(found):
        raise TypeError(
            "Images must be floats, in the range that the model was trained on, or uint8 from 0 to 255, which are "
            f'divided by 255. Received: {found}. Convert them with `images.astype("float32")` or `astype("uint8")`'
        )
    return ops.cast(images, dtype)


def to_channels_last(images, data_format):
    """The images with the channels behind height and width.

    Args:
        images: Tensor of shape `(B, channels, height, width)` if `data_format` is `"channels_first"`, else
            `(B, height, width, channels)`.
        data_format: `"channels_first"` or `"channels_last"`.

    Returns:
        A tensor of shape `(B, height, width, channels)`.
    """
    return ops.transpose(images, (0, 2, 3, 1)) if data_format == "channels_first" else images


def from_channels_last(images, data_format):
    """The other way round than `to_channels_last`.

    Args:
        images: Tensor of shape `(B, height, width, channels)`.
        data_format: `"channels_first"` or `"channels_last"`.

    Returns:
        A tensor of shape `(B, channels, height, width)` if `data_format` is `"channels_first"`, else as it was.
    """
    return ops.transpose(images, (0, 3, 1, 2)) if data_format == "channels_first" else images


def zero_padding_shortcut(inputs, filters, strides=1):
    """Carry images on to where there are more channels and fewer places, without a weight: shortcut "A".

    Args:
        inputs: Tensor of shape `(B, height, width, channels)`.
        filters: Integer. Number of channels that come out, at least as many as go in; the new ones are 0.
        strides: Integer. Every how many rows and columns are kept. Defaults to `1`.

    Returns:
        A tensor of shape `(B, ceil(height / strides), ceil(width / strides), filters)`.

    Raises:
        ValueError: If there would be fewer channels than before.

    Source: S2, "A. zero padding".
    """
    channels = inputs.shape[-1]
    if channels is None or filters < channels or strides < 1:
        raise ValueError(
            "`filters` must be at least the number of channels, which must be known, and `strides` 1 or more. "
            f"Received: filters={filters}, strides={strides}, inputs of shape {tuple(inputs.shape)}"
        )
    missing = filters - channels
    x = inputs if strides == 1 else inputs[:, ::strides, ::strides, :]
    return ops.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x
