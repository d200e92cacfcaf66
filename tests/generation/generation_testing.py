"""What the tests of the generation share: chi-square, MurmurHash3 in NumPy, and a model whose logits are tables."""

import keras
import numpy as np
from keras import ops

from keras_lt.generation.generative_mixin import GenerativeMixin


class TableModel(GenerativeMixin):
    """Speaks the decoding protocol, is no `keras.Model`, and adds up four numbers for the logit of each next token:

    of the last two tokens, of the first token that it looks at, of the number of tokens that it looks at, and of all of
    them. `next_logits` says the same in NumPy. Its cache counts the tokens that entered: where the loop says that there
    were more or fewer before the new ones, logits are NaN.
    """

    def __init__(self, vocabulary_size, max_sequence_length=None, seed=0, mask_zero=False):
        self.vocabulary_size, self.max_sequence_length = vocabulary_size, max_sequence_length
        self.mask_zero = mask_zero
        self.weights = [
            keras.Variable(np.zeros(shape), dtype="float32")
            for shape in ((vocabulary_size + 1, *[vocabulary_size] * 2), [vocabulary_size] * 2, (64, vocabulary_size))
        ]
        self.traces = 0
        self.draw(seed)

    def draw(self, seed, scale=1.5):
        generator = np.random.default_rng(seed)
        self.tables = [scale * generator.normal(size=weight.shape).astype("float32") for weight in self.weights]
        for weight, table in zip(self.weights, self.tables, strict=True):
            weight.assign(table)

    def compute_mask(self, inputs, previous_mask=None):
        return ops.not_equal(inputs, 0) if self.mask_zero else None

    def build_cache(self, batch_size, max_length):
        return {"token_ids": ops.zeros((batch_size, max_length), "int32"), "count": ops.zeros((batch_size,), "int32")}

    def call_with_cache(self, token_ids, cache, start_index, lengths=None):
        self.traces += 1
        pairs, firsts, places = (weight.value for weight in self.weights)
        num_rows, length, room = *token_ids.shape, cache["token_ids"].shape[1]
        token_ids = ops.cast(token_ids, "int32")
        starts = ops.broadcast_to(ops.cast(start_index, "int32"), (num_rows,))
        lengths = ops.full((num_rows,), length, dtype="int32") if lengths is None else ops.cast(lengths, "int32")
        source = ops.arange(room, dtype="int32") - starts[:, None]
        new = ops.take_along_axis(token_ids, ops.clip(source, 0, length - 1), axis=1)
        written = ops.logical_and(source >= 0, source < lengths[:, None])
        held = ops.where(written, new, cache["token_ids"])
        numbers = starts[:, None] + ops.arange(length, dtype="int32")
        before = ops.take_along_axis(held, ops.clip(numbers - 1, 0, room - 1), axis=1)
        before = ops.where(numbers > 0, before, self.vocabulary_size)
        rows = ops.reshape(pairs, (-1, self.vocabulary_size))
        logits = ops.take(rows, before * self.vocabulary_size + token_ids, axis=0)
        logits = logits + ops.take(firsts, held[:, 0], axis=0)[:, None]
        logits = logits + ops.take(places, ops.clip(numbers, 0, 63), axis=0)
        known = ops.logical_or(ops.equal(starts, cache["count"]), ops.equal(lengths, 0))
        logits = ops.where(known[:, None, None], logits, float("nan"))
        return logits, {"token_ids": held, "count": cache["count"] + lengths}

    def next_logits(self, history):
        """The logits after a list of tokens, float64, in NumPy."""
        history = list(history)[-(self.max_sequence_length or len(history)) :]
        pairs, firsts, places = self.tables
        before = history[-2] if len(history) > 1 else self.vocabulary_size
        return pairs[before, history[-1]].astype("float64") + firsts[history[0]] + places[len(history) - 1]


def log_softmax(logits):
    logits = np.asarray(logits, "float64")
    logits = logits - logits.max(-1, keepdims=True)
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def greedy(model, prompt, max_new_tokens, stop_token_ids=()):
    """What greedy decoding gives, token by token in Python; the choices must not hang on rounding."""
    tokens = list(prompt)
    for _ in range(max_new_tokens):
        logits = model.next_logits(tokens)
        best, second = np.sort(logits)[::-1][:2]
        assert best - second > 1e-4
        if np.argmax(logits) in stop_token_ids:
            break
        tokens.append(int(np.argmax(logits)))
    return tokens


def assert_distributed(counts, probabilities):
    """Chi-square. By Wilson and Hilferty's approximation 1 of 3 million true samples would fail."""
    counts, probabilities = np.ravel(counts), np.ravel(probabilities)
    assert counts[probabilities == 0].sum() == 0
    expected = (probabilities * counts.sum())[probabilities > 0]
    assert expected.min() > 10, "too few draws for the approximation"
    degrees = len(expected) - 1
    if degrees == 0:
        return
    statistic = ((counts[probabilities > 0] - expected) ** 2 / expected).sum()
    deviation = ((statistic / degrees) ** (1 / 3) - (1 - 2 / (9 * degrees))) / np.sqrt(2 / (9 * degrees))
    assert deviation < 5, f"chi-square is {statistic} at {degrees} degrees of freedom"


def murmur_mix(x):
    """The finalizer of MurmurHash3 for 32 bits, `fmix32` of its author's MurmurHash3.cpp."""
    x = np.asarray(x).astype("uint32")
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def murmur_fold_in(key, number):
    """A key of a key and a number, int32: the number is moved on by the golden ratio's fraction in 32 bits."""
    golden = np.uint32(int((5**0.5 - 1) / 2 * 2**32))
    number = np.asarray(number).astype("uint32")
    return murmur_mix(np.asarray(key).astype("uint32") ^ murmur_mix(number + golden)).astype("int32")
