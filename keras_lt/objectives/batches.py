"""Datasets whose batches are computed when they are asked for: one of tf.data, or a PyDataset of the same batches.

What is in a row says a cutter, an object with

- `num_rows`, the rows of a pass, and `row_size`, about how many numbers one of them holds;
- `cut(data, numbers, key, arrays)`, which makes from the data, for the rows of these numbers (int64, `(B,)`), any
  nested structure of tensors `(B, ...)`, by the functions in `arrays`. `key` is the pass's, for what is random.
"""

import copy
import types

import keras
import numpy as np

from keras_lt.objectives.arrays import NUMPY, tensorflow_arrays
from keras_lt.objectives.random_numbers import NUMBER_LIMIT, pass_key, permute

_NUMBERS_PER_GROUP = 2**16
_FIXED_PASS = NUMBER_LIMIT - 1


def make_dataset(cutter, data, batch_size, seed=None, shuffle=False, is_fixed=False):
    """Makes the dataset of a cutter's rows.

    Args:
        cutter: What makes rows of numbers, as said above.
        data: Nested structure of NumPy arrays. Copied.
        batch_size: Positive integer, rows a batch.
        seed: Integer, or `None` where nothing is random: the key is `None` then. Defaults to `None`.
        shuffle: Boolean, whether rows come in a pseudo-random order, another one in every pass. Defaults to `False`.
        is_fixed: Boolean, whether every pass is the same, and draws other numbers than any pass of a dataset that is
            not fixed. Defaults to `False`.

    Returns:
        A `tf.data.Dataset` where TensorFlow can be imported, else a `keras.utils.PyDataset`.
    """
    passes = _Passes(cutter, seed, shuffle, is_fixed)
    try:
        import tensorflow as tf
    except ImportError:
        return _RowBatches(passes, data, batch_size)
    return _tensorflow_dataset(tf, passes, data, batch_size)


class _Passes:
    """Which rows stand where in a pass, with the array functions of NumPy or TensorFlow."""

    def __init__(self, cutter, seed, shuffle, is_fixed):
        self.cutter = cutter
        self.are_counted = seed is not None and not is_fixed
        self._seed = seed
        self._shuffle = shuffle

    def key(self, number):
        if self._seed is None:
            return None
        return pass_key(self._seed, number if self.are_counted else _FIXED_PASS)

    def rows(self, data, first, last, key, arrays):
        numbers = arrays.arange(first, last)
        if self._shuffle:
            numbers = permute(numbers, self.cutter.num_rows, key, arrays)
        return self.cutter.cut(data, numbers, key, arrays)


def _tensorflow_dataset(tf, passes, data, batch_size):
    arrays = tensorflow_arrays(tf)
    num_rows = passes.cutter.num_rows
    num_batches = -(-num_rows // batch_size)
    # A call of a tf.data function costs far more than cutting one small batch, so a call cuts a group of batches.
    group_size = max(1, _NUMBERS_PER_GROUP // (batch_size * passes.cutter.row_size))
    with tf.init_scope(), tf.device("CPU:0"):
        data = tf.nest.map_structure(tf.constant, data)
        epoch = tf.Variable(0, dtype="int64", trainable=False, name="epoch") if passes.are_counted else None

    @tf.function(autograph=False)
    def rows(first, last, key):
        return passes.rows(data, first, last, key, arrays)

    @tf.autograph.experimental.do_not_convert
    def one_pass(_):
        key = passes.key(epoch.read_value() if passes.are_counted else None)

        def full_batches(group):
            first = group * group_size
            last = tf.minimum(first + group_size, num_batches - 1)
            parts = rows(first * batch_size, last * batch_size, key)
            return tf.nest.map_structure(lambda part: tf.reshape(part, (-1, batch_size, *part.shape[1:])), parts)

        def last_batch(number):
            # Not prefetched, so that a pass counts as done when its last batch is taken and not when it is made.
            updates = [epoch.assign_add(1)] if passes.are_counted else []
            with tf.control_dependencies(updates):
                return rows(number * batch_size, tf.constant(num_rows, "int64"), key)

        groups = tf.data.Dataset.range(-(-(num_batches - 1) // group_size)).map(full_batches).prefetch(1)
        return groups.unbatch().concatenate(tf.data.Dataset.range(num_batches - 1, num_batches).map(last_batch))

    options = tf.data.Options()
    options.autotune.enabled = False
    # They would write the whole data into a graph and read it again, for each pass.
    options.experimental_optimization.apply_default_optimizations = False
    return (
        tf.data.Dataset.range(1)
        .flat_map(one_pass)
        .apply(tf.data.experimental.assert_cardinality(num_batches))
        .with_options(options)
    )


class _RowBatches(keras.utils.PyDataset):
    """The batches for an installation without TensorFlow; batch `i` is step `first + i` of the endless stream."""

    def __init__(self, passes, data, batch_size):
        super().__init__()
        self._passes = passes
        self._data = keras.tree.map_structure(np.array, data)
        self._batch_size = batch_size
        self._batches_per_pass = -(-passes.cutter.num_rows // batch_size)
        self._first, self._stop = 0, self._batches_per_pass
        self._finished = types.SimpleNamespace(passes=0)
        self._num_served = 0

    @property
    def num_batches(self):
        return None if self._stop is None else self._stop - self._first

    def __len__(self):
        if self._stop is None:
            raise TypeError("A dataset that repeats without end has no length")
        return self.num_batches

    def __getitem__(self, index):
        if index < 0 or (self._stop is not None and index >= self.num_batches):
            raise IndexError(f"Batch {index} of {self.num_batches}")
        self._num_served += 1
        epoch, number = divmod(self._first + index, self._batches_per_pass)
        first = number * self._batch_size
        last = min(first + self._batch_size, self._passes.cutter.num_rows)
        return self._passes.rows(self._data, first, last, self._passes.key(self._finished.passes + epoch), NUMPY)

    def __iter__(self):
        self.on_epoch_begin()
        yield from super().__iter__()
        self.on_epoch_end()

    def on_epoch_begin(self):
        self._num_served = 0

    def on_epoch_end(self):
        # Keras also ends an "epoch" after it has looked at one batch to build a model.
        if self._stop == self._batches_per_pass and self._num_served >= self.num_batches:
            self._finished.passes += 1
        self._num_served = 0

    def take(self, count):
        stop = self._first + count
        return self._view(self._first, stop if self._stop is None else min(stop, self._stop))

    def skip(self, count):
        first = self._first + count
        return self._view(first if self._stop is None else min(first, self._stop), self._stop)

    def repeat(self):
        if (self._first, self._stop) != (0, self._batches_per_pass):
            raise ValueError("Only a whole pass can be repeated: call repeat() before take() or skip()")
        view = self._view(0, None)
        view._finished = types.SimpleNamespace(passes=self._finished.passes)
        return view

    def _view(self, first, stop):
        view = copy.copy(self)
        view._first, view._stop = first, stop
        return view
