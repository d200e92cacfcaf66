from typing import NamedTuple

import numpy as np

from keras_lt.backend.checks import check_number, check_positive_integer, check_rate
from keras_lt.objectives.batches import make_dataset
from keras_lt.objectives.ids import check_absent, checked_ids, checked_special_ids
from keras_lt.objectives.random_numbers import draw, resolve_seed
from keras_lt.objectives.windows import Windows, split_into_windows

# What is drawn; the numbers only have to differ.
_NOISE_CUTS, _KEPT_CUTS = 21, 22


def span_corruption(
    token_ids,
    sequence_length,
    batch_size,
    sentinel_ids,
    start_token_id,
    end_token_id,
    noise_density=0.15,
    mean_span_length=3.0,
    stride=1,
    validation_split=0.0,
    shuffle=True,
    seed=None,
    vocabulary_size=None,
):
    """Turns a stream of token ids into batches of texts with gaps and of what fills the gaps.

    Of a window of `n = sequence_length` ids, `m = round(n * noise_density)` are taken out in
    `s = max(1, round(m / mean_span_length))` spans. Kept and taken pieces alternate, a kept one first, each at least 1
    long, all ways of cutting the `n - m` kept and the `m` taken ids into `s` pieces being equally likely. For a window
    `a b c d e f g` without `b c` and `f g`, sentinels `X Y Z`, start `S` and end `E`:

    - `source` is `a X d e Y E`: what is kept, with one sentinel in place of each span, in the order given;
    - `y` is `X b c Y f g E`: each sentinel, and what it stands for;
    - `target` is `S X b c Y f g`: what a decoder reads to give `y`, each id after those before it.

    All rows are of the same lengths, `n - m + s + 1` and `m + s + 1`, and hold no padding.

    **Training** visits every window that starts at a multiple of `stride` once a pass, in the order that
    `causal_windows` gives such windows (passes, `take`, `skip`, `repeat` as there), and takes out other spans in every
    pass: those of a window depend on `seed`, the pass and the window alone, and are the same in every process.

    **Validation** is the last part of the text, cut into windows side by side, in order, with the same spans in every
    pass. Nothing is dropped: a last, shorter piece is filled up, in front, with the held-out ids before it. What is
    taken from those has been up for guessing in the window before, and weighs 0 in `sample_weight`, as does a sentinel
    whose span begins there; all other weights are 1. Training never sees a held-out id.

    Args:
        token_ids: Integers of rank 1: a list, a NumPy array of any integer type or a tensor. Copied to int32.
        sequence_length: Positive integer, the length `n` of a window.
        batch_size: Positive integer, windows a batch.
        sentinel_ids: List of integers, at least `s`; the first `s` are used.
        start_token_id: Integer, what a decoder reads first.
        end_token_id: Integer, what ends `source` and `y`.
        noise_density: Float above 0, below 1, the part of a window that is taken out. Defaults to `0.15`.
        mean_span_length: Float, 1 or more, the mean length of a span. Defaults to `3.0`.
        stride: Positive integer, the distance between the starts of training windows. Defaults to `1`.
        validation_split: Float in [0, 1), the part of the ids, taken from the end, that is held out.
            Defaults to `0.0`.
        shuffle: Boolean, whether training windows come in a pseudo-random order; otherwise in the order of the text.
            Defaults to `True`.
        seed: Integer that decides order and spans. Defaults to `None`: drawn from NumPy's global generator, so that
            `keras.utils.set_random_seed` governs it.
        vocabulary_size: Positive integer, above every id, special ones included. Defaults to `None`: ids are only
            checked not to be negative.

    Returns:
        The training dataset, or the pair `(train, validation)` when `validation_split` is above 0. Both yield
        `({"source", "target"}, y, sample_weight)`, int32 and, the weights, float32.

    Raises:
        ValueError: If an argument is out of its range, if ids are not integers of rank 1, negative or not below
            `vocabulary_size`, if special ids are too few, not different or in the text, if a window is too short for
            `s` spans, or if a part of the text is shorter than a window.

    Example:

    >>> train = keras_lt.objectives.span_corruption(
    ...     list(range(100)), sequence_length=20, batch_size=4, sentinel_ids=[102, 103], start_token_id=100,
    ...     end_token_id=101, seed=1
    ... )
    >>> x, y, sample_weight = next(iter(train))
    >>> x["source"].shape, x["target"].shape, y.shape  # 3 ids in 1 span
    ((4, 19), (4, 5), (4, 5))

    Source: S2, the span corruption of T5.
    """
    check_positive_integer("sequence_length", sequence_length)
    check_positive_integer("batch_size", batch_size)
    check_positive_integer("stride", stride)
    check_positive_integer("vocabulary_size", vocabulary_size, optional=True)
    check_rate("validation_split", validation_split)
    num_noise, num_spans = _noise(sequence_length, noise_density, mean_span_length)
    sentinel_ids = np.asarray(sentinel_ids).tolist() if hasattr(sentinel_ids, "shape") else sentinel_ids
    special_ids = checked_special_ids(
        vocabulary_size, sentinel_ids=sentinel_ids, start_token_id=start_token_id, end_token_id=end_token_id
    )
    *sentinel_ids, start_token_id, end_token_id = special_ids
    if len(sentinel_ids) < num_spans:
        raise ValueError(
            f"`sentinel_ids` must be {num_spans} or more: {num_noise} of {sequence_length} ids are taken out in "
            f"{num_spans} spans. Received: {len(sentinel_ids)} sentinels"
        )
    seed = resolve_seed(seed)
    token_ids = checked_ids(token_ids, vocabulary_size)
    check_absent(special_ids, token_ids)
    train, validation = split_into_windows(len(token_ids), sequence_length, stride, validation_split)

    def dataset(windows, ids, **kwargs):
        cutter = _CorruptedWindows(windows, num_noise, num_spans, start_token_id, end_token_id)
        sentinels = np.array(sentinel_ids[:num_spans], "int32")
        return make_dataset(cutter, {"token_ids": ids, "sentinels": sentinels}, batch_size, seed, **kwargs)

    train_dataset = dataset(train, token_ids[: train.num_ids], shuffle=shuffle)
    if validation is None:
        return train_dataset
    return train_dataset, dataset(validation, token_ids[train.num_ids :], is_fixed=True)


def _noise(sequence_length, noise_density, mean_span_length):
    """How many ids of a window are taken out, and in how many spans."""
    check_number("noise_density", noise_density, 0, 1)
    check_number("mean_span_length", mean_span_length, 1)
    num_noise = round(sequence_length * noise_density)
    num_spans = max(1, round(num_noise / mean_span_length))
    if num_noise < 1 or sequence_length - num_noise < num_spans:
        raise ValueError(
            f"A window must hold an id to take out, and an id to keep for each span. Received: "
            f"sequence_length={sequence_length}, of which noise_density={noise_density} takes out {num_noise} in "
            f"{num_spans} spans (mean_span_length={mean_span_length}) and keeps {sequence_length - num_noise}"
        )
    return num_noise, num_spans


class _CorruptedWindows(NamedTuple):
    """Windows with spans taken out: `s` kept pieces and `s` spans alternate. `P` is the length of a row that is made.

    All follows from the ends of the pieces, counted in kept ids and in taken ids: before span `j` stand the first
    `kept_ends[j]` kept ids and the first `span_begins[j]` taken ones.
    """

    windows: Windows
    num_noise: int
    num_spans: int
    start_token_id: int
    end_token_id: int

    @property
    def num_rows(self):
        return self.windows.num_windows

    @property
    def row_size(self):
        return self.windows.length * (2 + self.num_spans // 8)

    def cut(self, data, numbers, key, arrays):
        num_kept = self.windows.length - self.num_noise
        kept_ends = _random_ends(key, _KEPT_CUTS, numbers, num_kept, self.num_spans, arrays)
        span_ends = _random_ends(key, _NOISE_CUTS, numbers, self.num_noise, self.num_spans, arrays)
        zeros = 0 * span_ends[:, :1]  # (B, 1)
        span_begins = arrays.concatenate([zeros, span_ends[:, :-1]])  # (B, s)
        order = arrays.arange(0, self.num_spans)
        places, is_new = self.windows.places(numbers, arrays)  # (B, n)

        place = arrays.arange(0, num_kept + self.num_spans)[None, :] + zeros  # (B, P)
        sentinel_places = kept_ends + order
        piece = arrays.count(sentinel_places[:, None, :] < place[:, :, None])
        inside = place - piece + arrays.take_along_rows(span_begins, piece)
        is_sentinel = place == arrays.take_along_rows(sentinel_places, piece)
        source = self._filled(data, piece, is_sentinel, arrays.take_along_rows(places, inside), arrays)

        place = arrays.arange(0, self.num_noise + self.num_spans)[None, :] + zeros  # (B, P)
        sentinel_places = span_begins + order
        piece = arrays.count(sentinel_places[:, None, :] <= place[:, :, None]) - 1
        is_sentinel = place == arrays.take_along_rows(sentinel_places, piece)
        # A sentinel lies, as its span does, where the span begins.
        inside = place - piece - 1 + arrays.cast(is_sentinel, "int64") + arrays.take_along_rows(kept_ends, piece)
        answer = self._filled(data, piece, is_sentinel, arrays.take_along_rows(places, inside), arrays)

        start, end = (arrays.cast(zeros + number, "int32") for number in (self.start_token_id, self.end_token_id))
        x = {"source": arrays.concatenate([source, end]), "target": arrays.concatenate([start, answer])}
        counts = arrays.concatenate([arrays.take_along_rows(is_new, inside), zeros == 0])
        return x, arrays.concatenate([answer, end]), arrays.cast(counts, "float32")

    def _filled(self, data, piece, is_sentinel, places, arrays):
        sentinels = arrays.take(data["sentinels"], piece)
        return arrays.where(is_sentinel, sentinels, arrays.take(data["token_ids"], places))


def _random_ends(key, purpose, numbers, count, num_pieces, arrays):
    """For each number, where the pieces of `count` things end that are cut into `num_pieces`, `(B, num_pieces)`.

    Of the `count - 1` gaps between two things those are cut that draw the smallest numbers.
    """
    gaps = arrays.arange(1, count)
    draws = draw(key, purpose, numbers[:, None], gaps) * count + gaps  # the gap itself decides between equals
    cuts = arrays.sort(arrays.sort(draws)[:, : num_pieces - 1] % count)
    return arrays.concatenate([cuts, (0 * numbers + count)[:, None]])
