"""Cross-entropy against the logarithm of the sum of exponentials in float64."""

import keras
import numpy as np
import pytest

from keras_lt.ops import cross_entropy
from testing import BACKEND, MODES, assert_close, gradient, run

B, T, V = 3, 5, 11


def formula(logits, token_ids):
    logits = logits.astype("float64")
    largest = logits.max(axis=-1, keepdims=True)
    log_sum = (largest + np.log(np.exp(logits - largest).sum(axis=-1, keepdims=True)))[..., 0]
    return log_sum - np.take_along_axis(logits, token_ids[..., None], axis=-1)[..., 0]


def batch(*shape, scale=1.0):
    random = np.random.default_rng(0)
    logits = scale * random.normal(size=(*shape, V)).astype("float32")
    return logits.astype("float32"), random.integers(0, V, shape)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shape", [(B, T), (B * T,), (2, B, T), (0, T)])
def test_formula(shape, mode):
    logits, token_ids = batch(*shape)
    losses = run(mode, cross_entropy, logits, token_ids)
    assert losses.dtype == "float32"
    assert_close(losses, formula(logits, token_ids))


@pytest.mark.parametrize("mode", MODES)
def test_gradient_is_softmax_minus_one_hot(mode):
    logits, token_ids = batch(B, T)
    exponentials = np.exp(logits.astype("float64"))
    expected = exponentials / exponentials.sum(axis=-1, keepdims=True) - np.eye(V)[token_ids]
    assert_close(gradient(mode, cross_entropy, logits, token_ids), expected)


@pytest.mark.parametrize("mode", MODES)
def test_extreme_logits(mode):
    logits, token_ids = batch(B, T, scale=1e4)
    logits[0] += 1e6
    assert_close(run(mode, cross_entropy, logits, token_ids), formula(logits, token_ids))
    slopes = gradient(mode, cross_entropy, logits, token_ids)
    assert np.isfinite(slopes).all()


@pytest.mark.parametrize("mode", MODES)
def test_ids_out_of_range_give_nan_there_and_nowhere_else(mode):
    logits, token_ids = batch(B, T)
    expected = formula(logits, token_ids)
    for place, wrong in {(0, 1): V, (1, 2): -1, (2, 4): 2**31 - 1, (1, 0): -(2**31)}.items():
        token_ids[place], expected[place] = wrong, np.nan
    assert_close(run(mode, cross_entropy, logits, token_ids), expected)
    slopes = gradient(mode, cross_entropy, logits, token_ids)
    assert np.isfinite(slopes[~np.isnan(expected)]).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.skipif(BACKEND == "jax", reason="JAX cuts int64 off before we see it")
def test_int64_ids_do_not_wrap_around(mode):
    logits, token_ids = batch(B, T)
    token_ids = token_ids.astype("int64") + 2**32
    assert np.isnan(run(mode, cross_entropy, logits, token_ids)).all()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_logits_are_computed_in_float32(dtype, mode):
    logits, token_ids = batch(B, T, scale=30)

    def function(logits, token_ids):
        low = keras.ops.cast(logits, dtype)
        losses = cross_entropy(low, token_ids)
        assert keras.backend.standardize_dtype(losses.dtype) == "float32"
        return keras.ops.cast(low, "float32"), losses

    low, losses = run(mode, function, logits, token_ids)
    assert_close(losses, formula(low, token_ids))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "float32"])
def test_dtype_of_the_ids(dtype, mode):
    logits, token_ids = batch(B, T)
    assert_close(run(mode, cross_entropy, logits, token_ids.astype(dtype)), formula(logits, token_ids))


def test_lists():
    assert_close(cross_entropy([[0.0, 0.0], [0.0, np.log(3.0)]], [0, 1]), np.log([2, 4 / 3]))


@pytest.mark.parametrize("shape", [(B, T, 1), (B,), (B, T + 1), (T, B), (B, T, V), ()])
def test_wrong_shapes(shape):
    logits, _ = batch(B, T)
    with pytest.raises(ValueError, match="shape") as error:
        cross_entropy(logits, np.zeros(shape, "int32"))
    message = str(error.value).replace("torch.Size([", "(").replace("])", ")")
    assert str(shape) in message
    assert str((B, T, V)) in message
