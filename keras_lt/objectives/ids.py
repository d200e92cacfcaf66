"""Checks of ids where they enter a dataset."""

import keras
import numpy as np

from keras_lt.backend.checks import check_ids
from keras_lt.objectives.random_numbers import NUMBER_LIMIT


def as_integers(values, name):
    """The values as a NumPy array of rank 1.

    Args:
        values: A list, a NumPy array of any integer type or a tensor.
        name: String. What the error calls the values.

    Returns:
        An array; one without items may be of any type.

    Raises:
        ValueError: If they are not integers of rank 1.
    """
    if keras.ops.is_tensor(values):
        values = keras.ops.convert_to_numpy(values)
    array = np.asarray(values)
    if array.dtype.kind in "US":
        raise ValueError(
            f"`{name}` must be integers of rank 1: a tokenizer's `encode` makes them of text. Received: text"
        )
    if array.ndim != 1:
        raise ValueError(f"`{name}` must have rank 1. Received: shape {array.shape}")
    if array.size and not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"`{name}` must be integers. Received: {array.dtype}")
    return array


def checked_ids(token_ids, vocabulary_size, name="token_ids"):
    """The ids as a NumPy array of int32.

    Args:
        token_ids: A list, a NumPy array of any integer type or a tensor, of rank 1.
        vocabulary_size: Positive integer, above every id, or `None`.
        name: String. What the error calls the ids. Defaults to `"token_ids"`.

    Returns:
        An int32 array, the one that was given where it is one.

    Raises:
        ValueError: If they are not integers of rank 1, or one is negative or not below `vocabulary_size`.
    """
    ids = as_integers(token_ids, name)
    size, what = vocabulary_size, "vocabulary_size"
    if size is None:
        size, what = NUMBER_LIMIT, "the limit of int32"
    # Only where an id is wrong, since finding the first takes several arrays of the size of a whole corpus.
    if ids.size and (ids.min() < 0 or ids.max() >= size):
        check_ids(ids, size, name=name, what=what)
    return ids.astype("int32", copy=False)


def checked_special_ids(vocabulary_size, **special_ids):
    """The ids that stand for no token of a text.

    Args:
        vocabulary_size: Positive integer, above every id, or `None`.
        **special_ids: By the name of the argument that gave it an integer, or, where that ends in `_ids`, a list.

    Returns:
        A list of Python's integers in the order given.

    Raises:
        ValueError: If one is no integer or out of range, or if two are the same.
    """
    found = {}
    for name, value in special_ids.items():
        values = value if isinstance(value, (list, tuple, range, np.ndarray)) else [value]
        if len(values) != 1 and not name.endswith("_ids"):
            raise ValueError(f"`{name}` must be one integer. Received: {value!r}")
        if any(isinstance(item, bool) for item in values):
            raise ValueError(f"`{name}` must be integers. Received: {value!r}")
        for item in checked_ids(list(values), vocabulary_size, name).tolist():
            if item in found:
                raise ValueError(f"Special ids must differ. Received: {item} in {found[item]} and in {name}")
            found[item] = name
    return list(found)


def checked_id_lists(texts, vocabulary_size, name, may_be_empty=False):
    """The ids of several texts, one text behind the other, and the texts' lengths.

    Args:
        texts: List of lists, NumPy arrays of any integer type or tensors, each of rank 1.
        vocabulary_size: Positive integer, above every id, or `None`.
        name: String. What the error calls the texts.
        may_be_empty: Boolean. Whether a text may hold no id. Defaults to `False`.

    Returns:
        An int32 array of all ids, and an int64 array of lengths.

    Raises:
        ValueError: If there is no text, or one is empty that may not be, not of integers of rank 1, or holds an id that
            is negative or not below `vocabulary_size`.
    """
    if isinstance(texts, (str, bytes)) or not hasattr(texts, "__iter__"):
        raise ValueError(f"`{name}` must be a list of texts, each of them integers. Received: {texts!r}")
    arrays = [as_integers(text, f"{name}[{number}]") for number, text in enumerate(texts)]
    if not arrays:
        raise ValueError(f"`{name}` must hold one text or more. Received: none")
    lengths = np.array([len(array) for array in arrays], "int64")
    if not may_be_empty and not lengths.min():
        raise ValueError(f"`{name}` must not be empty. Received: no id in {name}[{int(lengths.argmin())}]")
    checked = [checked_ids(array, vocabulary_size, f"{name}[{number}]") for number, array in enumerate(arrays)]
    return np.concatenate(checked), lengths


def check_absent(special_ids, token_ids, name="token_ids", lengths=None):
    """Raise a `ValueError` if an id that a dataset puts in by itself stands in the text already.

    Args:
        special_ids: List of integers.
        token_ids: Array of rank 1.
        name: String. What the error calls the ids. Defaults to `"token_ids"`.
        lengths: Array of rank 1, the lengths of the texts that `token_ids` are made of. Defaults to `None`, one text.

    Raises:
        ValueError: If one of them does.
    """
    wrong = np.isin(token_ids, special_ids)
    if not wrong.any():
        return
    place, where = int(np.argmax(wrong)), ""
    received = int(token_ids[place])
    if lengths is not None:
        ends = np.cumsum(lengths)
        number = int(np.searchsorted(ends, place, side="right"))
        place, where = place - int(ends[number] - lengths[number]), f" of {name}[{number}]"
    raise ValueError(
        f"`{name}` must not hold the special ids {list(special_ids)}. "
        f"Received: {received} at [{place}]{where}, and {int(wrong.sum()) - 1} more"
    )
