"""What users pass to `generate` and `score`, checked and brought into NumPy arrays."""

import random

import keras
import numpy as np

from keras_lt.backend import check_ids, check_number
from keras_lt.generation.decoding_method import DecodingMethod
from keras_lt.generation.function_sampler import FunctionSampler
from keras_lt.generation.sampler import Sampler


def to_rows(token_ids, vocabulary_size, lengths=None, name="token_ids"):
    """The sequences as a list of int32 arrays.

    Args:
        token_ids: List of lists (or arrays) of ids, or an array or tensor of shape `(B, T)`.
        vocabulary_size: Integer. Ids must lie below it.
        lengths: Integers of shape `(B,)`: how many ids of each row are real. Defaults to `None`, all.
        name: String. What errors call the ids. Defaults to `"token_ids"`.

    Raises:
        ValueError: If shapes do not fit, or an id is out of range.
        TypeError: If the ids are no numbers.
    """
    rows = [_to_array(row) for row in _split(token_ids, name)]
    if any(row.ndim != 1 for row in rows):
        wrong = next(row for row in rows if row.ndim != 1)
        raise ValueError(
            f"`{name}` must be a list of sequences of ids, or an array of shape (B, T): for a single sequence, "
            f"[sequence]. Received: an entry of rank {wrong.ndim}"
        )
    if lengths is not None:
        lengths = _to_array(lengths)
        if lengths.shape != (len(rows),) or lengths.dtype.kind not in "iu":
            raise ValueError(
                f"`lengths` must be integers of shape ({len(rows)},), one a row. "
                f"Received: {lengths.dtype} of shape {lengths.shape}"
            )
        for number, (row, length) in enumerate(zip(rows, lengths, strict=True)):
            if not 0 <= length <= len(row):
                raise ValueError(f"`lengths[{number}]` must be from 0 to {len(row)}. Received: {length}")
        rows = [row[:length] for row, length in zip(rows, lengths, strict=True)]
    for number, row in enumerate(rows):
        check_ids(row, vocabulary_size, name=f"{name}[{number}]")
    return [row.astype("int32") for row in rows]


def pad(rows, num_rows, length):
    """Rows of ids side by side in an int32 array of shape `(num_rows, length)`, filled with 0."""
    padded = np.zeros((num_rows, length), "int32")
    for number, row in enumerate(rows):
        padded[number, : len(row)] = row
    return padded


def to_method(sampler):
    """The `DecodingMethod` that the argument `sampler` names."""
    if isinstance(sampler, DecodingMethod):
        return sampler
    if sampler == "greedy":
        return Sampler(temperature=0.0)
    if callable(sampler) and not isinstance(sampler, type):
        return FunctionSampler(sampler)
    raise ValueError(
        '`sampler` must be "greedy", a keras_lt.generation.Sampler or BeamSearch, or a function '
        f"(logits, history) -> ids. Received: {sampler!r}"
    )


def to_stop_token_ids(stop_token_ids, vocabulary_size):
    """The ids as an int32 array, filled up with -1 to a size that few numbers of ids share."""
    if stop_token_ids is None:
        stop_token_ids = []
    stop_token_ids = np.atleast_1d(_to_array(stop_token_ids))
    if stop_token_ids.ndim != 1:
        raise ValueError(f"`stop_token_ids` must be an id or a list of ids. Received: rank {stop_token_ids.ndim}")
    check_ids(stop_token_ids, vocabulary_size, name="stop_token_ids")
    filled = np.full(max(4, 1 << max(0, len(stop_token_ids) - 1).bit_length()), -1, "int32")
    filled[: len(stop_token_ids)] = stop_token_ids
    return filled


def to_seeds(seed, num_prompts, copies):
    """A seed and a stream number for each of the `copies` rows of each prompt, two int32 arrays.

    One seed for all gives each row a stream of its own; a seed for each prompt makes what it gets independent of the
    other prompts.
    """
    if seed is None:
        # Python's generator, because `keras.utils.set_random_seed` seeds it and it costs nothing.
        seed = random.randrange(2**32)
    # No array is made of a list: NumPy has no integers for long seeds.
    seeds = _to_array(seed).tolist() if hasattr(seed, "dtype") else list(seed) if isinstance(seed, tuple) else seed
    shared = not isinstance(seeds, list)
    if not shared and len(seeds) != num_prompts:
        raise ValueError(f"`seed` must be one integer, or one a prompt: {num_prompts}. Received: {len(seeds)}")
    seeds = [seeds] * num_prompts if shared else seeds
    for one in seeds:
        check_number("seed", one, 0, whole=True)
    seeds = np.array([_to_32_bits(int(one)) for one in seeds], "uint32").astype("int32")
    streams = np.arange(num_prompts * copies) if shared else np.tile(np.arange(copies), num_prompts)
    return np.repeat(seeds, copies), streams.astype("int32")


def _split(token_ids, name):
    if isinstance(token_ids, (list, tuple)):
        return token_ids
    if keras.ops.is_tensor(token_ids) or isinstance(token_ids, np.ndarray):
        if len(token_ids.shape) != 2:
            raise ValueError(
                f"`{name}` must be a list of sequences of ids, or an array of shape (B, T). "
                f"Received: shape {tuple(token_ids.shape)}"
            )
        return list(_to_array(token_ids))
    raise TypeError(
        f"`{name}` must be a list of sequences of ids, or an array of shape (B, T). For text there is "
        f"keras_lt.TextGenerator. Received: {type(token_ids).__name__}"
    )


def _to_array(values):
    if keras.ops.is_tensor(values):
        values = keras.ops.convert_to_numpy(values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"Sequences of ids must be flat. Received: {values!r:.100}") from error
    if array.dtype == bool:
        raise TypeError("Ids, lengths and seeds must be integers. Received: booleans")
    return array.astype("int32") if array.size == 0 else array


def _to_32_bits(seed):
    low, high = seed % 2**32, seed >> 32
    while high:
        low = ((low ^ high % 2**32 * 0x9E3779B1) + 0x85EBCA6B) % 2**32
        high >>= 32
    return low
