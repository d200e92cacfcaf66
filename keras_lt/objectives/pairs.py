from typing import NamedTuple

import numpy as np

from keras_lt.backend.checks import check_positive_integer
from keras_lt.objectives.batches import make_dataset
from keras_lt.objectives.ids import check_absent, checked_id_lists, checked_special_ids
from keras_lt.objectives.random_numbers import resolve_seed


def pairs(
    sources,
    targets,
    batch_size,
    start_token_id,
    end_token_id,
    shuffle=True,
    seed=None,
    vocabulary_size=None,
    source_length=None,
    target_length=None,
):
    """Turns pairs of texts, such as sentences and their translations, into batches for an encoder-decoder.

    For a target `t_1 ... t_n` the decoder reads `start t_1 ... t_n` and is to give `y = t_1 ... t_n end`, each id after
    those before it. Rows are padded with zeros at their ends, to one length for all batches; the masks say what is
    real, and `sample_weight` is 1 where `y` is and 0 elsewhere.

    With `shuffle` the pairs come in a pseudo-random order, another one in every pass, as the windows of
    `causal_windows` do (passes, `take`, `skip`, `repeat` as there).

    Args:
        sources: List of texts, each of them integers of rank 1, one or more: a list, an array or a tensor.
        targets: List of as many texts. They may be empty.
        batch_size: Positive integer, pairs a batch.
        start_token_id: Integer, what the decoder reads first. It must not be in a target.
        end_token_id: Integer, what ends an answer. It must not be in a target.
        shuffle: Boolean, whether pairs come in a pseudo-random order. Defaults to `True`.
        seed: Integer that decides the order. Defaults to `None`: drawn from NumPy's global generator, so that
            `keras.utils.set_random_seed` governs it.
        vocabulary_size: Positive integer, above every id. Defaults to `None`: ids are only checked not to be negative.
        source_length: Positive integer, the length of the rows of sources. Defaults to `None`: that of the longest.
        target_length: Positive integer, the length of the rows of targets with `start_token_id`. Defaults to `None`:
            that of the longest.

    Returns:
        A dataset of `({"source", "source_padding_mask", "target", "target_padding_mask"}, y, sample_weight)`: ids are
        int32, masks boolean (True for a real id), weights float32; of shape `(batch, source_length)` for the source
        and its mask, `(batch, target_length)` for all others.

    Raises:
        ValueError: If an argument is out of its range, if there is no pair, if there are not as many sources as
            targets, if a source is empty, if a text is not of integers of rank 1, is longer than a row, or holds an id
            that is negative or not below `vocabulary_size`, or if `start_token_id` or `end_token_id` is in a target or
            both are one.

    Example:

    >>> train = keras_lt.objectives.pairs(
    ...     [[5, 6], [7]], [[8], [9, 5]], batch_size=2, start_token_id=1, end_token_id=2, shuffle=False
    ... )
    >>> x, y, sample_weight = next(iter(train))
    >>> np.array(x["source"]).tolist(), np.array(x["target"]).tolist(), np.array(y).tolist()
    ([[5, 6], [7, 0]], [[1, 8, 0], [1, 9, 5]], [[8, 2, 0], [9, 5, 2]])
    >>> np.array(x["target_padding_mask"]).tolist()
    [[True, True, False], [True, True, True]]
    """
    check_positive_integer("batch_size", batch_size)
    check_positive_integer("vocabulary_size", vocabulary_size, optional=True)
    special_ids = checked_special_ids(vocabulary_size, start_token_id=start_token_id, end_token_id=end_token_id)
    source_ids, source_lengths = checked_id_lists(sources, vocabulary_size, "sources")
    target_ids, target_lengths = checked_id_lists(targets, vocabulary_size, "targets", may_be_empty=True)
    if len(source_lengths) != len(target_lengths):
        raise ValueError(
            f"There must be as many sources as targets. Received: {len(source_lengths)} sources and "
            f"{len(target_lengths)} targets"
        )
    check_absent(special_ids, target_ids, "targets", target_lengths)
    seed = resolve_seed(seed) if shuffle else None
    data = {
        "source": _rows(source_ids, source_lengths),
        "target": _rows(target_ids, target_lengths),
    }
    cutter = _Pairs(
        len(source_lengths),
        _row_length("source_length", source_length, source_lengths),
        _row_length("target_length", target_length, target_lengths + 1),
        *special_ids,
    )
    return make_dataset(cutter, data, batch_size, seed, shuffle=shuffle)


def _rows(token_ids, lengths):
    if not len(token_ids):
        token_ids = np.zeros(1, "int32")  # what stands behind texts that are all empty is looked at, and not used
    return {"token_ids": token_ids, "lengths": lengths, "begins": lengths.cumsum() - lengths}


def _row_length(name, length, lengths):
    check_positive_integer(name, length, optional=True)
    longest = int(lengths.max())
    if length is not None and longest > length:
        raise ValueError(f"`{name}` must hold the longest row, {longest} ids. Received: {name}={length}")
    return length or longest


class _Pairs(NamedTuple):
    """Rows of padded sources and targets from texts that lie one behind the other."""

    num_rows: int
    source_length: int
    target_length: int
    start_token_id: int
    end_token_id: int

    @property
    def row_size(self):
        return 2 * self.source_length + 4 * self.target_length

    def cut(self, data, numbers, key, arrays):
        source, source_mask, _ = _padded(data["source"], numbers, self.source_length, arrays)
        y, _, lengths = _padded(data["target"], numbers, self.target_length, arrays)
        places = arrays.arange(0, self.target_length)
        is_real = places <= lengths  # (B, T): with the one id that stands before or behind a target
        start = arrays.cast(0 * lengths + self.start_token_id, "int32")  # (B, 1)
        x = {
            "source": source,
            "source_padding_mask": source_mask,
            "target": arrays.concatenate([start, y[:, :-1]]),
            "target_padding_mask": is_real,
        }
        return x, arrays.where(places == lengths, self.end_token_id, y), arrays.cast(is_real, "float32")


def _padded(rows, numbers, length, arrays):
    """Some texts, filled up with zeros, `(B, length)`, which of that is real, and the texts' lengths, `(B, 1)`."""
    lengths = arrays.take(rows["lengths"], numbers)[:, None]
    begins = arrays.take(rows["begins"], numbers)[:, None]
    places = arrays.arange(0, length)
    is_real = places < lengths
    ids = arrays.take(rows["token_ids"], arrays.where(is_real, begins + places, 0))
    return ids * arrays.cast(is_real, "int32"), is_real, lengths
