import math
from typing import NamedTuple

import numpy as np

from keras_lt.backend.checks import check_positive_integer, check_rate
from keras_lt.objectives.batches import make_dataset
from keras_lt.objectives.ids import checked_ids
from keras_lt.objectives.random_numbers import resolve_seed


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
    seed = resolve_seed(seed) if shuffle else None
    token_ids = checked_ids(token_ids, vocabulary_size)
    split = math.floor(len(token_ids) * (1.0 - validation_split))
    held_out = len(token_ids) - split
    received = f"Received: {split} for training and {held_out} held out (validation_split={validation_split})"
    if split <= sequence_length:
        raise ValueError(f"A window of sequence_length={sequence_length} takes {sequence_length + 1} ids. {received}")
    num_windows = (split - sequence_length - 1) // stride + 1
    windows = _Windows(sequence_length, stride, num_windows)
    train = make_dataset(windows, token_ids[:split], batch_size, seed, shuffle=shuffle)
    if not validation_split:
        return train
    if held_out < 2:
        raise ValueError(f"A prediction takes 2 ids, and nothing is held out to predict. {received}")
    num_windows = -(-(held_out - 1) // sequence_length)
    padded = np.zeros(num_windows * sequence_length + 1, "int32")
    padded[:held_out] = token_ids[split:]
    windows = _Windows(sequence_length, sequence_length, num_windows, num_predictions=held_out - 1)
    return train, make_dataset(windows, padded, batch_size)


class _Windows(NamedTuple):
    """Where windows lie in a stream of ids."""

    sequence_length: int
    stride: int
    num_rows: int
    num_predictions: int | None = None

    @property
    def row_size(self):
        return self.sequence_length + 1

    def cut(self, token_ids, numbers, key, arrays):
        starts = (numbers * self.stride)[:, None]  # (B, 1)
        windows = arrays.take(token_ids, starts + arrays.arange(0, self.sequence_length + 1))  # (B, T + 1)
        x, y = windows[:, :-1], windows[:, 1:]
        if self.num_predictions is None:
            return x, y
        is_real = starts + arrays.arange(0, self.sequence_length) < self.num_predictions
        return x * arrays.cast(is_real, "int32"), y, arrays.cast(is_real, "float32")
