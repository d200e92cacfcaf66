"""From logits to token ids: pure functions, in which every setting is a tensor and so no reason to compile again."""

import keras
from keras import ops

# Below it, dividing by the temperature could overflow; the distribution is that of temperature 0 long before.
_LOWEST_TEMPERATURE = 1e-6


def fold_in(key, number):
    """A new key of a key and a number: a hash, and so the same in every process, on every backend and device.

    Args:
        key: int32 tensor.
        number: int32 tensor that broadcasts against `key`.

    Returns:
        An int32 tensor.

    Source: the mixing step of MurmurHash3.
    """
    return _mix(ops.bitwise_xor(key, _mix(ops.add(number, _int32(0x9E3779B9)))))


def uniform(key, number):
    """A random number of each key, counter-based: 24 bits of a hash of the key and the number.

    Args:
        key: int32 tensor.
        number: int32 tensor that broadcasts against `key`: which of the numbers of the key.

    Returns:
        A float32 tensor, at least 0 and less than 1.
    """
    bits = _shift_right(fold_in(key, number), 8)
    return ops.cast(bits, "float32") * 2.0**-24


def sample(logits, token_ids, lengths, keys, settings):
    """Choose a token for each row.

    The settings apply in this order: repetition penalty, temperature, top-k, top-p, min-p. At temperature 0 the
    likeliest token is chosen, the first of several.

    Args:
        logits: Tensor of shape `(B, V)`; minus infinity for a token that may not be chosen.
        token_ids: int32 tensor of shape `(B, S)`, the tokens so far.
        lengths: int32 tensor of shape `(B,)`: how many of them there are.
        keys: int32 tensor of shape `(B,)`, the key of each row's random numbers, of which `lengths` picks one.
        settings: Dictionary of scalar tensors, as `Sampler.settings` gives them.

    Returns:
        An int32 tensor of shape `(B,)`.
    """
    logits = ops.cast(logits, "float32")
    logits = ops.cond(
        ops.not_equal(settings["repetition_penalty"], 1.0),
        lambda: penalize_repetition(logits, token_ids, lengths, settings["repetition_penalty"]),
        lambda: logits,
    )
    return ops.cond(
        settings["temperature"] > 0,
        lambda: _draw(logits, uniform(keys, lengths)[:, None], settings),
        lambda: ops.cast(ops.argmax(logits, axis=-1), "int32"),
    )


def penalize_repetition(logits, token_ids, lengths, penalty):
    """Make the tokens that were there less likely: logits above 0 are divided by the penalty, those below multiplied.

    Args:
        logits: Tensor of shape `(B, V)`.
        token_ids: int32 tensor of shape `(B, S)`.
        lengths: int32 tensor of shape `(B,)`, at least 1: how many of the tokens are real.
        penalty: Scalar tensor. 1 changes nothing.

    Returns:
        A tensor of shape `(B, V)`.

    References:
    - [Keskar et al., 2019](https://arxiv.org/abs/1909.05858)
    """
    real = ops.arange(ops.shape(token_ids)[1], dtype="int32") < lengths[:, None]
    token_ids = ops.where(real, token_ids, token_ids[:, :1])
    rows = ops.broadcast_to(ops.arange(ops.shape(token_ids)[0], dtype="int32")[:, None], ops.shape(token_ids))
    places = ops.reshape(ops.stack([rows, token_ids], axis=-1), (-1, 2))
    seen = ops.scatter_update(ops.zeros_like(logits), places, ops.ones_like(places[:, 0], dtype=logits.dtype))
    penalized = ops.where(logits > 0, logits / penalty, logits * penalty)
    return ops.where(seen > 0, penalized, logits)


def _draw(logits, numbers, settings):
    size = logits.shape[-1]
    top_k, top_p, min_p = settings["top_k"], settings["top_p"], settings["min_p"]
    temperature = ops.maximum(settings["temperature"], _LOWEST_TEMPERATURE)
    logits = (logits - ops.max(logits, axis=-1, keepdims=True)) / temperature
    limits_number = ops.logical_and(top_k > 0, top_k < size)
    count = ops.where(limits_number, top_k, size)
    limits = ops.logical_or(limits_number, ops.logical_or(top_p < 1, min_p > 0))

    def draw_from_all():
        return _pick(ops.softmax(logits, axis=-1), numbers)

    def draw_from_likeliest():
        values, token_ids = ops.top_k(logits, size)  # sorted, so that each limit keeps what stands at the front
        place = _pick(_limited_probabilities(values, count, top_p, min_p), numbers)
        return ops.cast(ops.take_along_axis(token_ids, place[:, None], axis=1)[:, 0], "int32")

    return ops.cond(limits, draw_from_likeliest, draw_from_all)


def _limited_probabilities(logits, count, top_p, min_p):
    """Of logits in falling order: the probabilities, 0 where one of the limits cuts a token off, not normalised."""
    rank = ops.arange(logits.shape[-1], dtype="int32")
    probabilities = ops.softmax(ops.where(rank < count, logits, -float("inf")), axis=-1)
    before = ops.cumsum(probabilities, axis=-1) - probabilities
    # Rounding may bring the sum to 1 too early: at top_p 1 nothing is asked of it.
    kept = ops.logical_or(ops.logical_or(before < top_p, top_p >= 1), rank == 0)
    kept = ops.logical_and(kept, probabilities >= min_p * probabilities[:, :1])
    return ops.where(kept, probabilities, 0.0)


def _pick(probabilities, numbers):
    """The place at which the running sum passes a share of the whole, never one of probability 0."""
    sums = ops.cumsum(probabilities, axis=-1)
    passed = ops.logical_and(sums > numbers * sums[:, -1:], probabilities > 0)
    # Rounding may leave the sum just short of the share: then the likeliest.
    place = ops.where(ops.any(passed, axis=-1), ops.argmax(passed, axis=-1), ops.argmax(probabilities, axis=-1))
    return ops.cast(place, "int32")


def _mix(x):
    x = ops.bitwise_xor(x, _shift_right(x, 16)) * _int32(0x85EBCA6B)
    x = ops.bitwise_xor(x, _shift_right(x, 13)) * _int32(0xC2B2AE35)
    return ops.bitwise_xor(x, _shift_right(x, 16))


def _shift_right(x, bits):
    """Without the sign, which int32 would draw in from the left; backends differ in what they do with uint32."""
    return ops.bitwise_and(ops.bitwise_right_shift(x, bits), (1 << (32 - bits)) - 1)


def _int32(number):
    return keras.ops.convert_to_tensor(number - 2**32 if number >= 2**31 else number, "int32")
