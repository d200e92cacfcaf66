import keras


class _MaskReader(keras.layers.Layer):
    def call(self, inputs, mask=None):
        self.found = mask
        return inputs


class _MaskWriter(keras.layers.Layer):
    def call(self, inputs):
        return inputs

    def compute_mask(self, inputs, previous_mask):
        return self.given


def implicit_mask(tensor):
    """The padding mask that Keras keeps for a tensor, or `None`.

    Keras offers it to layers only, as the argument `mask`; where it is kept depends on the backend.

    Args:
        tensor: Tensor, as a layer returned it. An array or a list has no mask.

    Returns:
        A boolean tensor or `None`.
    """
    if not keras.ops.is_tensor(tensor):
        return None
    reader = _on(tensor, _MaskReader)
    reader(tensor)
    return reader.found


def with_implicit_mask(tensor, mask):
    """The tensor with a padding mask that Keras keeps for it, as if a layer had set it.

    On JAX, Keras loses the mask of a model's output on the way to the metrics, and never asks the `compute_mask` of the
    model that is trained: whoever knows the mask puts it back.

    Args:
        tensor: Tensor. If it has a mask it keeps that.
        mask: Boolean tensor, or `None`, which changes nothing.

    Returns:
        The tensor.
    """
    if mask is None or not keras.ops.is_tensor(tensor):
        return tensor
    writer = _on(tensor, _MaskWriter)
    writer.given = mask
    return writer(tensor)


def _on(tensor, layer_class):
    layer = layer_class(name="implicit_mask", dtype=keras.backend.standardize_dtype(tensor.dtype))
    layer.supports_masking = True
    return layer
