import numbers

import keras
import numpy as np


def is_concrete(tensor):
    """Whether the values of a tensor can be looked at now, because no function is being compiled.

    Args:
        tensor: Number, NumPy array or tensor of the Keras backend, symbolic ones included.

    Returns:
        A boolean.
    """
    if keras.utils.is_keras_tensor(tensor):
        return False
    if isinstance(tensor, (np.ndarray, np.generic, int, float, list, tuple)):
        return True
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return not tf.is_symbolic_tensor(tensor)
    if backend == "jax":
        import jax

        return not isinstance(tensor, jax.core.Tracer)
    if backend == "torch":
        import torch

        return tensor.device.type != "meta" and not torch.compiler.is_compiling()
    return True


def check_ids(token_ids, size, name="token_ids", what="vocabulary_size"):
    """Raise a `ValueError` if an id lies outside `0 .. size-1`, where the values can be looked at.

    Inside a function that is being compiled nothing can raise and nothing happens: there the caller answers a wrong
    id with NaN (`keras_lt.ops.nan_unless`).

    Args:
        token_ids: Tensor or array of ids.
        size: Integer. Number of valid ids.
        name: String. What the error calls the ids. Defaults to `"token_ids"`.
        what: String. What the error calls `size`. Defaults to `"vocabulary_size"`.

    Raises:
        TypeError: If the ids are no numbers.
        ValueError: If an id is out of range or not a whole number.
    """
    if not is_concrete(token_ids):
        return
    values = np.asarray(keras.ops.convert_to_numpy(token_ids))
    if values.dtype.kind in "OSUc":
        raise TypeError(f"`{name}` must be integers, as a tokenizer's `encode` gives them. Received: {values.dtype}")
    wrong = (values < 0) | (values >= size) | (values != np.floor(values))
    if wrong.any():
        place = tuple(int(i) for i in np.argwhere(wrong)[0])
        raise ValueError(
            f"`{name}` must be whole numbers from 0 to {size - 1} ({what}={size}). "
            f"Received: {values[place]} at {list(place)}, and {int(wrong.sum()) - 1} more"
        )


def check_positive_integer(name, value, optional=False):
    """Raise a `ValueError` unless a value is a whole number above 0, or, where that is allowed, `None`.

    Args:
        name: String. What the error calls the value.
        value: The value.
        optional: Boolean. Whether `None` passes. Defaults to `False`.

    Returns:
        The value, as Python's own integer: NumPy's are refused by some of Keras's layers, and by JSON.

    Raises:
        ValueError: If the value is something else.
    """
    if value is None and optional:
        return None
    if not _is_positive_integer(value):
        raise ValueError(
            f"`{name}` must be a positive integer{' or None' if optional else ''}. Received: {name}={value!r}"
        )
    return int(value)


def check_positive_integers(name, value, length=None):
    """Raise a `ValueError` unless a value is a sequence of whole numbers above 0.

    Args:
        name: String. What the error calls the value.
        value: The value.
        length: Integer. How many numbers it has to be. Defaults to `None`, one or more.

    Returns:
        The numbers, a tuple of integers.

    Raises:
        ValueError: If the value is something else.
    """
    items = tuple(value) if isinstance(value, (list, tuple)) else ()
    right_length = len(items) == length if length else bool(items)
    if not right_length or not all(map(_is_positive_integer, items)):
        expected = f"{length} positive integers" if length else "a tuple of one or more positive integers"
        raise ValueError(f"`{name}` must be {expected}. Received: {name}={value!r}")
    return tuple(map(int, items))


def _is_positive_integer(value):
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and value > 0


def check_rate(name, value):
    """Raise a `ValueError` unless a value is a dropout rate: at least 0 and less than 1.

    Args:
        name: String. What the error calls the value.
        value: The value.

    Raises:
        ValueError: If the value is something else.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value < 1:
        raise ValueError(f"`{name}` must be a number from 0 up to, but not including, 1. Received: {name}={value!r}")


def check_positive(name, value):
    """Raise a `ValueError` unless a value is a number above 0.

    Args:
        name: String. What the error calls the value.
        value: The value.

    Raises:
        ValueError: If the value is something else.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not 0 < value < float("inf"):
        raise ValueError(f"`{name}` must be a number above 0. Received: {name}={value!r}")


def check_number(name, value, minimum, maximum=None, whole=False):
    """Raise a `ValueError` unless a value is a finite number in a range.

    Args:
        name: String. What the error calls the value.
        value: The value.
        minimum: Number. The least value that passes.
        maximum: Number. The greatest value that passes. Defaults to `None`, no limit.
        whole: Boolean. Whether it has to be an integer. Defaults to `False`.

    Raises:
        ValueError: If the value is something else.
    """
    kind = numbers.Integral if whole else numbers.Real
    limit = float("inf") if maximum is None else maximum
    if isinstance(value, bool) or not isinstance(value, kind) or not minimum <= value <= limit or value == float("inf"):
        expected = "an integer" if whole else "a number"
        span = f"{minimum} or more" if maximum is None else f"from {minimum} to {maximum}"
        raise ValueError(f"`{name}` must be {expected}, {span}. Received: {name}={value!r}")
