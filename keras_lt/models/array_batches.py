"""Batches of arrays for `fit` on TensorFlow, where Keras's own pipeline tunes itself, which costs a core.

Which rows are in which batch is decided as in Keras; a shuffled order is another permutation of the same kind.
"""

import math

import keras
import numpy as np

from keras_lt.backend import array_dataset

_USUAL_BATCH_SIZE = 32


def with_array_batches(arguments):
    """The arguments of a `fit` with datasets in place of arrays, or as they are where Keras has to see the arrays.

    Args:
        arguments: Dictionary of what was given to `fit`.

    Returns:
        A dictionary of arguments for `fit`.
    """
    arguments = dict(arguments)
    batch_size = arguments.get("batch_size") or _USUAL_BATCH_SIZE
    data = (arguments.get("x"), arguments.get("y"), arguments.get("sample_weight"))
    shuffle = arguments.get("shuffle", True)
    left_to_keras = any(arguments.get(name) for name in ("class_weight", "steps_per_epoch", "validation_steps"))
    num_rows = _num_rows(data)
    if left_to_keras or num_rows is None or shuffle not in (True, False):
        return arguments
    validation = arguments.get("validation_data")
    if validation is None and (split := arguments.pop("validation_split", None)):
        start = math.floor(num_rows * (1 - split))
        if not 0 < start < num_rows:
            return {**arguments, "validation_split": split}
        data, validation = _part(data, slice(0, start)), _part(data, slice(start, None))
    if isinstance(validation, tuple) and _num_rows(validation):
        size = arguments.pop("validation_batch_size", None) or batch_size
        validation = _dataset(validation, size)
    arguments = {**arguments, "x": _dataset(data, batch_size, shuffle), "validation_data": validation}
    for name in ("y", "sample_weight", "batch_size"):
        arguments.pop(name, None)
    return {**arguments, "shuffle": False}


def _num_rows(data):
    """How many rows there are, if there are `x` and `y`, both of arrays of numbers, and all have as many; or `None`."""
    x, y = (*data, None)[:2]
    arrays = [array for array in keras.tree.flatten(data) if array is not None]
    if not isinstance(x, (np.ndarray, dict)) or not isinstance(y, np.ndarray) or not all(map(_is_plain, arrays)):
        return None
    rows = {len(array) for array in arrays}
    return rows.pop() if len(rows) == 1 and rows != {0} else None


def _is_plain(array):
    return isinstance(array, np.ndarray) and array.ndim > 0 and array.dtype.kind in "biuf"


def _part(data, rows):
    return keras.tree.map_structure(lambda leaf: None if leaf is None else leaf[rows], data)


def _dataset(data, batch_size, shuffle=False):
    data = tuple(part for part in data if part is not None)
    return array_dataset(keras.tree.map_structure(_in_dtype_of_keras, data), batch_size, shuffle)


def _in_dtype_of_keras(array):
    return array.astype(keras.config.floatx(), copy=False) if array.dtype.kind == "f" else array
