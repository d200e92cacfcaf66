from typing import NamedTuple

import numpy as np

from keras_lt.backend.checks import check_positive_integer, check_rate
from keras_lt.objectives.batches import make_dataset
from keras_lt.objectives.ids import as_integers, check_absent, checked_ids, checked_special_ids
from keras_lt.objectives.random_numbers import NUMBER_LIMIT, draw, resolve_seed
from keras_lt.objectives.windows import Windows, split_into_windows

# What is drawn; the numbers only have to differ.
_CHOICE, _TREATMENT, _REPLACEMENT = 11, 12, 13


def masked(
    token_ids,
    sequence_length,
    batch_size,
    mask_id,
    vocabulary_size,
    mask_rate=0.15,
    word_ids=None,
    stride=1,
    validation_split=0.0,
    shuffle=True,
    seed=None,
):
    """Turns a stream of token ids into batches of windows in which some ids are to be guessed from those around them.

    A window of `T = sequence_length` ids is the answer `y`. Each of its places is chosen with probability `mask_rate`,
    independently of the others. Of the chosen places, `x` shows `mask_id` at 80 %, an id drawn uniformly from all but
    `mask_id` at 10 % (by chance the right one), and the right id at 10 %; elsewhere `x` is `y`. `sample_weight` is 1
    at the chosen places and 0 elsewhere: use weighted losses and metrics.

    **Whole words.** With `word_ids`, neighbours of the same number are one word, which is chosen or not as a whole,
    still with probability `mask_rate`. Of a word that a window cuts, the window's part is chosen. Each token of a
    chosen word then draws its 80, 10 or 10 % for itself, as in BERT's own whole-word masking.

    **Training** visits every window that starts at a multiple of `stride` once a pass, in the order that
    `causal_windows` gives such windows (passes, `take`, `skip`, `repeat` as there), and chooses anew in every pass:
    what is chosen in a window depends on `seed`, the pass and the window alone, and is the same in every process.

    **Validation** is the last part of the text, cut into windows side by side, in order, with the same choices in every
    pass. Nothing is dropped and nothing filled up with padding, which a model that looks both ways would see: a last,
    shorter piece is filled up, in front, with the held-out ids before it. Those are not chosen there, so that each
    held-out id could be chosen exactly once. Training never sees a held-out id.

    Args:
        token_ids: Integers of rank 1: a list, a NumPy array of any integer type or a tensor. Copied to int32.
        sequence_length: Positive integer, the length `T` of a window.
        batch_size: Positive integer, windows a batch.
        mask_id: Integer, the id that says "guess what stands here". It must not be in the text.
        vocabulary_size: Integer, 2 or more, above every id and above `mask_id`.
        mask_rate: Float above 0, up to 1, the probability of a place to be chosen. Defaults to `0.15`.
        word_ids: Integers, as many as `token_ids`: neighbours with the same number are one word. Defaults to `None`:
            each token is chosen for itself.
        stride: Positive integer, the distance between the starts of training windows. Defaults to `1`.
        validation_split: Float in [0, 1), the part of the ids, taken from the end, that is held out.
            Defaults to `0.0`.
        shuffle: Boolean, whether training windows come in a pseudo-random order; otherwise in the order of the text.
            Defaults to `True`.
        seed: Integer that decides order and choices. Defaults to `None`: drawn from NumPy's global generator, so that
            `keras.utils.set_random_seed` governs it.

    Returns:
        The training dataset, or the pair `(train, validation)` when `validation_split` is above 0. Both yield
        `(x, y, sample_weight)`, int32, int32 and float32, all of shape `(batch, sequence_length)`.

    Raises:
        ValueError: If an argument is out of its range, if ids are not integers of rank 1, negative or not below
            `vocabulary_size`, if `mask_id` is in the text, or if a part of the text is shorter than a window.

    Example:

    >>> train = keras_lt.objectives.masked(
    ...     list(range(100)), sequence_length=8, batch_size=4, mask_id=100, vocabulary_size=101, seed=1
    ... )
    >>> x, y, sample_weight = next(iter(train))
    >>> x.shape, len(train)
    ((4, 8), 24)

    Source: S2, the masked language model of BERT.
    """
    check_positive_integer("sequence_length", sequence_length)
    check_positive_integer("batch_size", batch_size)
    check_positive_integer("stride", stride)
    check_rate("validation_split", validation_split)
    check_positive_integer("vocabulary_size", vocabulary_size)
    if vocabulary_size < 2:
        raise ValueError(f"`vocabulary_size` must be 2 or more. Received: vocabulary_size={vocabulary_size}")
    if isinstance(mask_rate, bool) or not isinstance(mask_rate, (int, float, np.number)) or not 0 < mask_rate <= 1:
        raise ValueError(f"`mask_rate` must be a number above 0, up to 1. Received: mask_rate={mask_rate!r}")
    seed = resolve_seed(seed)
    token_ids = checked_ids(token_ids, vocabulary_size)
    [mask_id] = checked_special_ids(vocabulary_size, mask_id=mask_id)
    check_absent([mask_id], token_ids)
    data = {"token_ids": token_ids}
    if word_ids is not None:
        data["words"] = _word_numbers(word_ids, len(token_ids))
    train, validation = split_into_windows(len(token_ids), sequence_length, stride, validation_split)

    def dataset(windows, part, **kwargs):
        cutter = _MaskedWindows(windows, mask_id, vocabulary_size, round(mask_rate * NUMBER_LIMIT))
        return make_dataset(cutter, {name: values[part] for name, values in data.items()}, batch_size, seed, **kwargs)

    train_dataset = dataset(train, slice(train.num_ids), shuffle=shuffle)
    if validation is None:
        return train_dataset
    return train_dataset, dataset(validation, slice(train.num_ids, None), is_fixed=True)


def _word_numbers(word_ids, num_ids):
    """Numbers the words of a text from 0 on, so that two words apart are two even if theirs was one number."""
    word_ids = as_integers(word_ids, "word_ids")
    if len(word_ids) != num_ids:
        raise ValueError(f"`word_ids` must be as many as the ids. Received: {len(word_ids)} for {num_ids} ids")
    numbers = np.zeros(num_ids, "int32")
    np.cumsum(word_ids[1:] != word_ids[:-1], out=numbers[1:])
    return numbers


class _MaskedWindows(NamedTuple):
    """Windows of which some places are to be guessed; a place is chosen where a draw lies below `limit`."""

    windows: Windows
    mask_id: int
    vocabulary_size: int
    limit: int

    @property
    def num_rows(self):
        return self.windows.num_windows

    @property
    def row_size(self):
        return 3 * self.windows.length

    def cut(self, data, numbers, key, arrays):
        places, is_new = self.windows.places(numbers, arrays)  # (B, T)
        y = arrays.take(data["token_ids"], places)
        words = arrays.cast(arrays.take(data["words"], places), "int64") if "words" in data else places
        numbers = numbers[:, None]  # (B, 1)
        is_chosen = is_new & (draw(key, _CHOICE, numbers, words) < self.limit)
        treatment = draw(key, _TREATMENT, numbers, places) % 10
        other = draw(key, _REPLACEMENT, numbers, places) % (self.vocabulary_size - 1)
        other = arrays.where(other < self.mask_id, other, other + 1)
        shown = arrays.where(treatment < 8, self.mask_id + 0 * other, other)
        shown = arrays.cast(shown, "int32")
        x = arrays.where(is_chosen & (treatment < 9), shown, y)
        return x, y, arrays.cast(is_chosen, "float32")
