"""The few array functions that batches are computed with, of NumPy and of TensorFlow: to the bit the same results."""

import types

import numpy as np


def _do_while_any(step, values):
    again = np.ones_like(values, "bool")
    while again.any():
        values, again = step(values, again)
    return values


NUMPY = types.SimpleNamespace(
    arange=lambda start, stop: np.arange(start, stop, dtype="int64"),
    take=np.take,
    take_along_rows=lambda values, places: np.take_along_axis(values, places, axis=1),
    cast=lambda values, dtype: values.astype(dtype),
    where=np.where,
    minimum=np.minimum,
    sort=lambda values: np.sort(values, axis=-1),
    count=lambda values: np.sum(values, axis=-1, dtype="int64"),
    concatenate=lambda values: np.concatenate(values, axis=1),
    do_while_any=_do_while_any,
)


def tensorflow_arrays(tf):
    """The functions of `NUMPY` for TensorFlow.

    Args:
        tf: The module, which is imported where it is needed.

    Returns:
        A namespace of functions.
    """
    return types.SimpleNamespace(
        arange=lambda start, stop: tf.range(start, stop, dtype="int64"),
        take=tf.gather,
        take_along_rows=lambda values, places: tf.gather(values, places, batch_dims=1),
        cast=tf.cast,
        where=tf.where,
        minimum=tf.minimum,
        sort=lambda values: tf.sort(values, axis=-1),
        count=lambda values: tf.math.count_nonzero(values, axis=-1),
        concatenate=lambda values: tf.concat(values, axis=1),
        do_while_any=lambda step, values: tf.while_loop(
            lambda values, again: tf.reduce_any(again), step, (values, tf.ones_like(values, "bool"))
        )[0],
    )
