import keras


class _MaskReader(keras.layers.Layer):
    def call(self, inputs, mask=None):
        self.found.append(mask)
        return inputs


def implicit_mask(tensor):
    """The padding mask that Keras keeps for a tensor, or `None`.

    Keras offers it to layers only, as the argument `mask`; where it is kept depends on the backend.

    Args:
        tensor: Tensor, as a layer returned it.

    Returns:
        A boolean tensor or `None`.
    """
    reader = _MaskReader(dtype=keras.backend.standardize_dtype(tensor.dtype))
    reader.supports_masking = True
    reader.found = found = []
    reader(tensor)
    return found[0]
