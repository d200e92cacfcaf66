from typing import NamedTuple

import numpy as np

from keras_lt.backend.checks import check_positive_integer
from keras_lt.objectives.batches import make_dataset
from keras_lt.objectives.ids import check_absent, checked_id_lists, checked_special_ids
from keras_lt.objectives.random_numbers import resolve_seed


def pack(documents, sequence_length, batch_size, separator_id, shuffle=True, seed=None, vocabulary_size=None):
    """Joins documents into full windows for next-token prediction in which no document looks into another.

    The documents become one stream, `separator doc separator doc ... separator`, which is cut into windows side by
    side: `x = stream[o : o + T]` and `y = stream[o + 1 : o + T + 1]` for `o = 0, T, 2 T, ...`, where `T` is
    `sequence_length`. A document is read behind a separator and predicts one at its end, so that a separator both
    begins and ends a text when a model generates. Every id of every document is predicted exactly once a pass.

    `segment_ids` number the documents in a window from 1 on; `LittleTransformer` lets attention stop and positions
    restart where they change. A document that a window cuts goes on in the next one as if it began there. Where the
    last window is filled up ids and segments are 0, and so is `sample_weight`, which is 1 elsewhere.

    With `shuffle` the windows come in a pseudo-random order, another one in every pass, as in `causal_windows`
    (passes, `take`, `skip`, `repeat` as there); in the stream documents stay as they are given.

    Args:
        documents: List of documents, each of them integers of rank 1, one or more: a list, an array or a tensor.
        sequence_length: Positive integer, the length `T` of `x` and `y`.
        batch_size: Positive integer, windows a batch.
        separator_id: Integer, what stands between documents. It must not be in them.
        shuffle: Boolean, whether windows come in a pseudo-random order. Defaults to `True`.
        seed: Integer that decides the order. Defaults to `None`: drawn from NumPy's global generator, so that
            `keras.utils.set_random_seed` governs it.
        vocabulary_size: Positive integer, above every id. Defaults to `None`: ids are only checked not to be negative.

    Returns:
        A dataset of `({"token_ids", "segment_ids"}, y, sample_weight)`, all int32 but the weights, which are float32,
        and all of shape `(batch, sequence_length)`.

    Raises:
        ValueError: If an argument is out of its range, if there is no document, or if one is empty, not integers of
            rank 1, or holds an id that is negative, not below `vocabulary_size` or the separator.

    Example:

    >>> train = keras_lt.objectives.pack([[5, 6, 7], [8, 9]], sequence_length=8, batch_size=1, separator_id=1)
    >>> x, y, sample_weight = next(iter(train))
    >>> [int(i) for i in x["token_ids"][0]], [int(i) for i in x["segment_ids"][0]]
    ([1, 5, 6, 7, 1, 8, 9, 0], [1, 1, 1, 1, 2, 2, 2, 0])
    >>> [int(i) for i in y[0]]
    [5, 6, 7, 1, 8, 9, 1, 0]
    """
    check_positive_integer("sequence_length", sequence_length)
    check_positive_integer("batch_size", batch_size)
    check_positive_integer("vocabulary_size", vocabulary_size, optional=True)
    [separator_id] = checked_special_ids(vocabulary_size, separator_id=separator_id)
    token_ids, lengths = checked_id_lists(documents, vocabulary_size, "documents")
    check_absent([separator_id], token_ids, "documents", lengths)
    seed = resolve_seed(seed) if shuffle else None
    begins = np.cumsum(lengths) - lengths
    num_predictions = len(token_ids) + len(lengths)
    num_windows = -(-num_predictions // sequence_length)
    padding = np.zeros(num_windows * sequence_length - num_predictions, "int32")
    stream = np.concatenate([np.insert(token_ids, begins, separator_id), [separator_id], padding])
    owners = np.concatenate([np.repeat(np.arange(len(lengths)), lengths + 1), padding])
    data = {"stream": stream.astype("int32"), "owners": owners.astype("int32")}
    windows = _PackedWindows(sequence_length, num_windows, num_predictions)
    return make_dataset(windows, data, batch_size, seed, shuffle=shuffle)


class _PackedWindows(NamedTuple):
    """Windows side by side in a stream, in which `owners` says whose prediction an id takes part in."""

    sequence_length: int
    num_rows: int
    num_predictions: int

    @property
    def row_size(self):
        return 2 * self.sequence_length

    def cut(self, data, numbers, key, arrays):
        places = (numbers * self.sequence_length)[:, None] + arrays.arange(0, self.sequence_length)  # (B, T)
        is_real = places < self.num_predictions
        real = arrays.cast(is_real, "int32")
        owners = arrays.take(data["owners"], places)
        token_ids = arrays.take(data["stream"], places) * real
        x = {"token_ids": token_ids, "segment_ids": (owners - owners[:, :1] + 1) * real}
        return x, arrays.take(data["stream"], places + 1), arrays.cast(is_real, "float32")
