"""How much each token counts: masks and sample weights of every shape, against a loop."""

import numpy as np
import pytest

from keras_lt.ops import token_weights
from testing import MODES, assert_close, needs_tensorflow, run

B, T = 3, 5
IDS = np.zeros((B, T), "int32")
MASK = np.random.default_rng(0).random((B, T)) < 0.5


def looped(mask, weight_of):
    return np.array([[float(mask[b, t]) * weight_of(b, t) for t in range(T)] for b in range(B)])


@pytest.mark.parametrize("mode", MODES)
def test_masks_and_sample_weights(mode):
    rows, tokens = np.random.default_rng(1).random(B), np.random.default_rng(2).random((B, T))
    cases = [
        (rows, lambda b, t: rows[b]),
        (rows[:, None], lambda b, t: rows[b]),
        (tokens, lambda b, t: tokens[b, t]),
        (tokens[..., None], lambda b, t: tokens[b, t]),
        (tokens[:1], lambda b, t: tokens[0, t]),
        ((tokens * 10).astype("int64"), lambda b, t: int(tokens[b, t] * 10)),
        (tokens > 0.5, lambda b, t: tokens[b, t] > 0.5),
        (2.5, lambda b, t: 2.5),
    ]

    def function(mask, sample_weights):
        return [[token_weights(IDS, each, weight) for weight in sample_weights] for each in (mask, None)]

    masked, unmasked = run(mode, function, MASK, [weight for weight, _ in cases])

    for (_, weight_of), one, other in zip(cases, masked, unmasked, strict=True):
        assert one.dtype == other.dtype == "float32"
        assert_close(one, looped(MASK, weight_of))
        assert_close(other, looped(np.ones((B, T)), weight_of))


def test_the_mask_alone():
    assert_close(token_weights(IDS, MASK), MASK.astype("float32"))
    assert token_weights(IDS) is None


def test_ids_of_another_rank():
    weights = np.arange(B, dtype="float32")
    assert_close(token_weights(IDS[:, 0], None, weights), weights)
    assert_close(token_weights(np.zeros((B, T, 2)), None, weights), np.broadcast_to(weights[:, None, None], (B, T, 2)))


@needs_tensorflow
def test_unknown_sizes():
    import tensorflow as tf

    specs = [tf.TensorSpec((None, None), "int32"), tf.TensorSpec((None,), "float32")]
    function = tf.function(lambda ids, weights: token_weights(ids, None, weights), input_signature=specs)
    weights = np.arange(B, dtype="float32")
    assert_close(function(IDS, weights), np.repeat(weights[:, None], T, axis=1))


@pytest.mark.parametrize("shape", [(T,), (B + 1,), (T, B), (B, T - 1), (B, T, 2), (1, B, T), (B, T, 1, 1)])
def test_wrong_shapes(shape):
    with pytest.raises(ValueError, match="Received") as error:
        token_weights(IDS, None, np.ones(shape))
    assert f"(B, T) = {(B, T)}. Received: sample_weight.shape={shape}" in str(error.value)
