import functools

import numpy as np
from keras import ops

from keras_lt.generation import loop
from keras_lt.generation.decoder import length_bucket, pad_source, row_bucket
from keras_lt.generation.prompts import pad
from keras_lt.ops import cross_entropy

_CHUNK = 512  # tokens a compiled call reads of each sequence
_LOGITS = 2**24  # numbers that the logits of a call may have: 64 MB in float32
_ROWS = 64


def score(decoder, rows, mask_of, sources=None):
    """Log-likelihood of sequences: each token given those before it, at most as many as the model looks at.

    Args:
        decoder: `Decoder` of the model.
        rows: List of int32 arrays.
        mask_of: Function of ids `(1, T)` that gives which are real, or `None`.
        sources: List of int32 arrays, what the model reads beside each row. Defaults to `None`, nothing.

    Returns:
        A dictionary of `"log_likelihood"`, float32, in nats, and `"token_counts"`, int32, arrays of a number a row.
    """
    limit = decoder.model.decoding_limit
    sums, counts = np.zeros(len(rows)), np.zeros(len(rows), "int32")
    pieces = []
    for number, row in enumerate(rows):
        if len(row) < 2:
            continue
        mask = mask_of(row[None])
        real = np.ones(len(row), bool) if mask is None else np.asarray(ops.convert_to_numpy(mask))[0]
        counted = real[:-1] & real[1:]
        counts[number] = counted.sum()
        pieces += [(number, *piece) for piece in _pieces(row, counted, limit)]
    # Pieces of one length go together, so that what a sequence gets does not hang on its company.
    by_length = {}
    for number, ids, counted in pieces:
        source_length = 0 if sources is None else length_bucket(len(sources[number]))
        group = by_length.setdefault((length_bucket(len(ids) - 1), source_length), [])
        group.append((number, ids, counted))
    for (length, _), group in by_length.items():
        size = min(_ROWS, max(1, _LOGITS // (decoder.model.vocabulary_size * min(length, _CHUNK))))
        for start in range(0, len(group), size):
            batch = group[start : start + size]
            read = None if sources is None else [sources[number] for number, _, _ in batch]
            for (number, _, _), value in zip(batch, _sum(decoder, batch, length, read), strict=False):
                sums[number] += value
    return {"log_likelihood": sums.astype("float32"), "token_counts": counts}


def _pieces(row, counted, limit):
    """What the model reads to score a row: its beginning, then for each later token the window before it."""
    first = len(row) if limit is None else limit + 1
    yield row[:first], counted[: first - 1]
    last = None if limit is None else np.arange(limit) == limit - 1
    for place in range(first, len(row)):
        if counted[place - 1]:
            yield row[place - limit : place + 1], last


def _sum(decoder, batch, length, sources):
    num_rows = row_bucket(len(batch))
    ids = pad([ids for _, ids, _ in batch], num_rows, length + 1)
    counted = pad([counted for _, _, counted in batch], num_rows, length).astype("bool")
    lengths = np.array([len(ids) - 1 for _, ids, _ in batch] + [0] * (num_rows - len(batch)), "int32")
    limit = decoder.model.decoding_limit
    room = length if limit is None else min(length, limit)
    key = ("cache", num_rows, room, sources is None)
    cache = decoder.compiled(key, functools.partial(loop.empty_cache, decoder.model, num_rows, room))(
        pad_source(sources, num_rows)
    )
    function, total = decoder.compiled("score", functools.partial(_score_chunk, decoder.model)), 0.0
    for start in range(0, room, _CHUNK):
        part = slice(start, min(start + _CHUNK, room))
        arrays = (ids[:, part], ids[:, 1:][:, part], counted[:, part], np.int32(start), lengths - np.int32(start))
        losses, cache = function(*map(ops.convert_to_tensor, arrays), cache)
        total = total + np.asarray(ops.convert_to_numpy(losses), "float64")
    return -total


def _score_chunk(model, token_ids, targets, counted, start, lengths, cache):
    lengths = ops.clip(lengths, 0, token_ids.shape[1])
    logits, cache = model.call_with_cache(token_ids, cache, start, lengths=lengths)
    losses = cross_entropy(logits, targets)
    return ops.sum(ops.where(counted, losses, 0.0), axis=-1), cache
