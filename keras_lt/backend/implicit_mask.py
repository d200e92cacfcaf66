import keras


class _MaskReader(keras.layers.Layer):
    def call(self, inputs, mask=None):
        self.found = mask
        return inputs


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
    reader = _MaskReader(name="implicit_mask", dtype=keras.backend.standardize_dtype(tensor.dtype))
    reader.supports_masking = True
    reader(tensor)
    return reader.found
