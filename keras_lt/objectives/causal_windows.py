import copy
import math
import operator
import types
from typing import NamedTuple

import keras
import numpy as np

from keras_lt.backend.checks import check_ids, check_positive_integer, check_rate

# The hash below works on 31-bit numbers held in int64: every product fits, so NumPy and TensorFlow agree to the bit.
_MASK = 2**31 - 1
_NUM_ROUNDS = 4
_IDS_PER_GROUP = 2**16


def causal_windows(
    token_ids,
    sequence_length,
    batch_size,
    stride=1,
    validation_split=0.0,
    shuffle=True,
    seed=None,
    vocabulary_size=None,
):
    """Turns a stream of token ids into batches of windows for next-token prediction.

    A window that starts at `o` gives `x = token_ids[o : o + T]` and `y = token_ids[o + 1 : o + T + 1]`, where `T` is
    `sequence_length`. Nothing but the ids is held in memory: windows are cut, a batch at a time, as they are asked for.

    **Training** visits every window that starts at a multiple of `stride` once a pass and yields `(x, y)`. The last
    batch of a pass may be smaller; none is dropped. (With `stride` above 1, up to `stride - 1` ids at the very end
    lie in no window.) The order is a pseudo-random permutation, computed and not stored, and another one in every pass:
    batch `k` of pass `e` depends on `seed`, `e` and `k` alone. Passes are counted from 0, and one counts as done when
    its last batch has been taken. A pass that is broken off is therefore begun anew: `fit(train.take(100), epochs=9)`
    sees the same 100 batches nine times, whereas `fit(train.repeat(), steps_per_epoch=100, epochs=9)` goes on through
    the text. A run that was stopped after `s` steps continues, in a new process, with `train.repeat().skip(s)`.

    **Validation** is the last part of the text, cut into windows side by side, in order. It yields
    `(x, y, sample_weight)`: all weights are 1, except where the last window is filled up with zeros, and those weigh
    0. Every prediction of one held-out id from those before it is so counted exactly once. Training never sees a
    held-out id. Use weighted losses and metrics, which leave the filled positions out.

    Where TensorFlow can be imported, whatever the backend of Keras, a `tf.data.Dataset` comes back: prefetched, of
    known length, and without tf.data's autotuning, which costs more here than it gains. Elsewhere it is a
    `keras.utils.PyDataset` of the very same batches, with `take`, `skip` and `repeat`. Pass `shuffle=False` to `fit`:
    Keras otherwise shuffles the batches of a `PyDataset` once more, and warns that it cannot shuffle those of tf.data.

    Args:
        token_ids: Integers of rank 1: a list, a NumPy array of any integer type or a tensor. Copied to int32.
        sequence_length: Positive integer, the length `T` of `x` and `y`.
        batch_size: Positive integer, windows a batch.
        stride: Positive integer, the distance between the starts of training windows. Defaults to `1`.
        validation_split: Float in [0, 1), the part of the ids, taken from the end, that is held out.
            Defaults to `0.0`.
        shuffle: Boolean, whether training windows come in a pseudo-random order; otherwise in the order of the text.
            Defaults to `True`.
        seed: Integer that decides the order. Defaults to `None`: drawn from NumPy's global generator, so that
            `keras.utils.set_random_seed` governs it.
        vocabulary_size: Positive integer, above every id. Defaults to `None`: ids are only checked not to be negative.

    Returns:
        The training dataset, or the pair `(train, validation)` when `validation_split` is above 0. `x` and `y` are
        int32 and `sample_weight` is float32, all of shape `(batch, sequence_length)`.

    Raises:
        ValueError: If an argument is out of its range, if the ids are not integers of rank 1, if one of them is
            negative or not below `vocabulary_size`, or if they are too few to cut a window.

    Example:

    >>> train, validation = keras_lt.objectives.causal_windows(
    ...     list(range(100)), sequence_length=8, batch_size=4, validation_split=0.2, seed=1
    ... )
    >>> len(train), len(validation)
    (18, 1)
    >>> x, y, sample_weight = next(iter(validation))
    >>> [int(i) for i in x[0]], [int(i) for i in y[0]]
    ([80, 81, 82, 83, 84, 85, 86, 87], [81, 82, 83, 84, 85, 86, 87, 88])
    """
    check_positive_integer("sequence_length", sequence_length)
    check_positive_integer("batch_size", batch_size)
    check_positive_integer("stride", stride)
    check_positive_integer("vocabulary_size", vocabulary_size, optional=True)
    check_rate("validation_split", validation_split)
    seed = _resolve_seed(seed) if shuffle else None
    token_ids = _checked_ids(token_ids, vocabulary_size)
    split = math.floor(len(token_ids) * (1.0 - validation_split))
    held_out = len(token_ids) - split
    received = f"Received: {split} for training and {held_out} held out (validation_split={validation_split})"
    if split <= sequence_length:
        raise ValueError(f"A window of sequence_length={sequence_length} takes {sequence_length + 1} ids. {received}")
    num_windows = (split - sequence_length - 1) // stride + 1
    train = _make_dataset(token_ids[:split], _Windows(sequence_length, stride, num_windows), batch_size, seed)
    if not validation_split:
        return train
    if held_out < 2:
        raise ValueError(f"A prediction takes 2 ids, and nothing is held out to predict. {received}")
    num_windows = -(-(held_out - 1) // sequence_length)
    padded = np.zeros(num_windows * sequence_length + 1, "int32")
    padded[:held_out] = token_ids[split:]
    windows = _Windows(sequence_length, sequence_length, num_windows, num_predictions=held_out - 1)
    return train, _make_dataset(padded, windows, batch_size, None)


class _Windows(NamedTuple):
    """Where windows lie in a stream of ids; `rows` cuts some, with the array functions of NumPy or TensorFlow."""

    sequence_length: int
    stride: int
    num_windows: int
    num_predictions: int | None = None

    def rows(self, token_ids, window_numbers, arrays):
        starts = (window_numbers * self.stride)[:, None]  # (B, 1)
        windows = arrays.take(token_ids, starts + arrays.arange(0, self.sequence_length + 1))  # (B, T + 1)
        x, y = windows[:, :-1], windows[:, 1:]
        if self.num_predictions is None:
            return x, y
        is_real = starts + arrays.arange(0, self.sequence_length) < self.num_predictions
        return x * arrays.cast(is_real, "int32"), y, arrays.cast(is_real, "float32")


def _make_dataset(token_ids, windows, batch_size, seed):
    try:
        import tensorflow as tf
    except ImportError:
        return _WindowBatches(token_ids, windows, batch_size, seed)
    return _tensorflow_dataset(tf, token_ids, windows, batch_size, seed)


def _tensorflow_dataset(tf, token_ids, windows, batch_size, seed):
    arrays = types.SimpleNamespace(
        arange=lambda start, stop: tf.range(start, stop, dtype="int64"),
        take=tf.gather,
        cast=tf.cast,
        where=tf.where,
        do_while_any=lambda step, values: tf.while_loop(
            lambda values, again: tf.reduce_any(again), step, (values, tf.ones_like(values, "bool"))
        )[0],
    )
    num_batches = -(-windows.num_windows // batch_size)
    # A call of a tf.data function costs far more than cutting one small batch, so a call cuts a group of batches.
    group_size = max(1, _IDS_PER_GROUP // (batch_size * (windows.sequence_length + 1)))
    with tf.init_scope(), tf.device("CPU:0"):
        token_ids = tf.constant(token_ids.astype("int32", copy=False))
        epoch = None if seed is None else tf.Variable(0, dtype="int64", trainable=False, name="epoch")

    @tf.function(autograph=False)
    def rows(first, last, keys):
        numbers = arrays.arange(first, last)
        if keys is not None:
            numbers = _permute(numbers, windows.num_windows, keys, arrays)
        return windows.rows(token_ids, numbers, arrays)

    @tf.autograph.experimental.do_not_convert
    def one_pass(_):
        keys = None if seed is None else _round_keys(seed, epoch.read_value())

        def full_batches(group):
            first = group * group_size
            last = tf.minimum(first + group_size, num_batches - 1)
            return tuple(
                tf.reshape(part, (-1, batch_size, windows.sequence_length))
                for part in rows(first * batch_size, last * batch_size, keys)
            )

        def last_batch(number):
            # Not prefetched, so that a pass counts as done when its last batch is taken and not when it is made.
            updates = [] if seed is None else [epoch.assign_add(1)]
            with tf.control_dependencies(updates):
                return rows(number * batch_size, tf.constant(windows.num_windows, "int64"), keys)

        groups = tf.data.Dataset.range(-(-(num_batches - 1) // group_size)).map(full_batches).prefetch(1)
        return groups.unbatch().concatenate(tf.data.Dataset.range(num_batches - 1, num_batches).map(last_batch))

    options = tf.data.Options()
    options.autotune.enabled = False
    passes = tf.data.Dataset.range(1).flat_map(one_pass)
    return passes.apply(tf.data.experimental.assert_cardinality(num_batches)).with_options(options)


class _WindowBatches(keras.utils.PyDataset):
    """The batches for an installation without TensorFlow; batch `i` is step `first + i` of the endless stream."""

    def __init__(self, token_ids, windows, batch_size, seed):
        super().__init__()
        self._token_ids = token_ids.astype("int32")
        self._windows = windows
        self._batch_size = batch_size
        self._seed = seed
        self._batches_per_pass = -(-windows.num_windows // batch_size)
        self._first, self._stop = 0, self._batches_per_pass
        self._passes = types.SimpleNamespace(done=0)
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
        numbers = _NUMPY.arange(first, min(first + self._batch_size, self._windows.num_windows))
        if self._seed is not None:
            keys = _round_keys(self._seed, self._passes.done + epoch)
            numbers = _permute(numbers, self._windows.num_windows, keys, _NUMPY)
        return self._windows.rows(self._token_ids, numbers, _NUMPY)

    def __iter__(self):
        self.on_epoch_begin()
        yield from super().__iter__()
        self.on_epoch_end()

    def on_epoch_begin(self):
        self._num_served = 0

    def on_epoch_end(self):
        # Keras also ends an "epoch" after it has looked at one batch to build a model.
        if self._stop == self._batches_per_pass and self._num_served >= self.num_batches:
            self._passes.done += 1
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
        view._passes = types.SimpleNamespace(done=self._passes.done)
        return view

    def _view(self, first, stop):
        view = copy.copy(self)
        view._first, view._stop = first, stop
        return view


def _do_while_any(step, values):
    again = np.ones_like(values, "bool")
    while again.any():
        values, again = step(values, again)
    return values


_NUMPY = types.SimpleNamespace(
    arange=lambda start, stop: np.arange(start, stop, dtype="int64"),
    take=np.take,
    cast=lambda values, dtype: values.astype(dtype),
    where=np.where,
    do_while_any=_do_while_any,
)


def _permute(numbers, count, keys, arrays):
    """Maps 0 ... count - 1 one to one onto itself: a Feistel network on the cells of a nearly square grid.

    Each round moves a cell along one axis by a distance that hangs on the other axis only, so it can be undone. Of the
    shapes tried, the one with the fewest cells too many is taken; who lands on such a cell moves on from there.
    """
    root = math.isqrt(count - 1) + 1
    num_rows = min(range(root, root + root // 8 + 1), key=lambda num_rows: -count % num_rows)
    num_columns = -(-count // num_rows)

    def step(numbers, again):
        row, column = numbers // num_columns, numbers % num_columns
        for row_key, column_key in zip(keys[::2], keys[1::2], strict=True):
            row = (row + _mix(column ^ row_key)) % num_rows
            column = (column + _mix(row ^ column_key)) % num_columns
        numbers = arrays.where(again, row * num_columns + column, numbers)
        return numbers, numbers >= count

    return arrays.do_while_any(step, numbers)


def _round_keys(seed, epoch):
    state = _mix(_mix((seed & _MASK) ^ 1_572_067_139) ^ ((seed >> 31) & _MASK))
    state = _mix(epoch ^ state)
    return [_mix(state ^ number) for number in range(1, _NUM_ROUNDS + 1)]


def _mix(number):
    """Hashes numbers below 2**31 one to one: each line can be undone, the multipliers being odd.

    They are 2**31 times the fractions of the golden ratio and of the square root of 2, whose bits have no pattern.
    """
    number = number ^ (number // 2**16)
    number = (number * 1_327_217_885) & _MASK
    number = number ^ (number // 2**15)
    number = (number * 889_516_853) & _MASK
    return number ^ (number // 2**16)


def _resolve_seed(seed):
    if seed is None:
        return int(np.random.randint(_MASK))
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ValueError(f"`seed` must be an integer or None. Received: seed={seed!r}")
    return operator.index(seed)


def _checked_ids(token_ids, vocabulary_size):
    if keras.ops.is_tensor(token_ids):
        token_ids = keras.ops.convert_to_numpy(token_ids)
    ids = np.asarray(token_ids)
    if ids.ndim != 1:
        raise ValueError(f"`token_ids` must have rank 1. Received: shape {ids.shape}")
    if ids.size and not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"`token_ids` must be integers. Received: {ids.dtype}")
    size, what = (_MASK + 1, "the limit of int32") if vocabulary_size is None else (vocabulary_size, "vocabulary_size")
    # Only where an id is wrong, since finding the first takes several arrays of the size of a whole corpus.
    if ids.size and (ids.min() < 0 or ids.max() >= size):
        check_ids(ids, size, what=what)
    return ids
