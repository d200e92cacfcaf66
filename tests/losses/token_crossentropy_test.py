"""TokenCrossentropy against a loop over the real tokens, alone and inside fit, evaluate and a custom loop."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_lt.losses import TokenCrossentropy
from testing import BACKEND, MODES, assert_close, gradient, needs_tensorflow, run, to_numpy

B, T, D, V = 3, 5, 7, 11
IDS = np.array([[4, 1, 0, 0, 0], [2, 3, 9, 8, 10], [0, 0, 5, 6, 0]])  # 0 is padding
REAL = IDS != 0
LABELS = np.random.default_rng(0).integers(0, V, (B, T))
LOGITS = np.random.default_rng(1).normal(size=(B, T, V)).astype("float32")
ROWS = np.array([0.5, 2.0, 3.0], "float32")
TOKENS = np.random.default_rng(2).random((B, T)).astype("float32")
WEIGHTS = {
    "none": (None, np.ones((B, T))),
    "(B,)": (ROWS, np.repeat(ROWS[:, None], T, axis=1)),
    "(B, 1)": (ROWS[:, None], np.repeat(ROWS[:, None], T, axis=1)),
    "(B, T)": (TOKENS, TOKENS),
    "(B, T, 1)": (TOKENS[..., None], TOKENS),
    "booleans": (TOKENS > 0.5, TOKENS > 0.5),
}


def token_loss(logits, token_id):
    logits = logits.astype("float64")
    return np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[token_id]


def mean_loss(logits, labels, weights):
    """sum(w * loss) / sum(w), a token at a time, over the tokens that have a weight."""
    total = count = 0.0
    for index in zip(*np.nonzero(weights), strict=True):
        total += weights[index] * token_loss(logits[index], labels[index])
        count += weights[index]
    return total / count


def token_model():
    """Logits of each id alone, with Keras's implicit mask."""
    model = keras.Sequential(
        [keras.Input((None,), dtype="int32"), keras.layers.Embedding(V, D, mask_zero=True), keras.layers.Dense(V)]
    )
    random = np.random.default_rng(3)
    model.set_weights([random.normal(size=weight.shape) for weight in model.weights])
    return model


def logits_of(model, ids):
    table, kernel, bias = model.get_weights()
    return table[ids] @ kernel + bias


@pytest.mark.parametrize("mode", MODES)
def test_mean_over_the_weighted_tokens(mode):
    def function(labels, logits, weights):
        return [TokenCrossentropy()(labels, logits, each) for each in weights]

    losses = run(mode, function, LABELS, LOGITS, [given for given, _ in WEIGHTS.values()])

    for loss, (_, weights) in zip(losses, WEIGHTS.values(), strict=True):
        assert loss.dtype == "float32"
        assert_close(loss, mean_loss(LOGITS, LABELS, weights))


@pytest.mark.parametrize("mode", MODES)
def test_padding_and_weights_both_count(mode):
    model = token_model()

    def function(labels, ids, weights):
        logits = model(ids)
        return [TokenCrossentropy()(labels, logits, each) for each in weights]

    losses = run(mode, function, LABELS, IDS, [given for given, _ in WEIGHTS.values()])

    for loss, (_, weights) in zip(losses, WEIGHTS.values(), strict=True):
        assert_close(loss, mean_loss(logits_of(model, IDS), LABELS, weights * REAL))


@pytest.mark.parametrize("mode", MODES)
def test_labels_out_of_range(mode):
    model, loss = token_model(), TokenCrossentropy()

    def both(labels, ids, logits, weights):
        return loss(labels, model(ids)), loss(labels, logits, weights)

    def function(masked, counted, *args):
        return [both(labels, *args) for labels in masked], [both(labels, *args) for labels in counted]

    masked, counted = [], []
    for wrong in (V, -1, 2**31 - 1):
        masked.append(np.where(REAL, LABELS, wrong))
        counted.append(LABELS.copy())
        counted[-1][1, 2] = wrong
    right, wrong = run(mode, function, masked, counted, IDS, LOGITS, REAL.astype("float32"))

    expected = mean_loss(logits_of(model, IDS), LABELS, REAL), mean_loss(LOGITS, LABELS, REAL)
    for losses in right:
        assert_close(losses, expected)
    assert np.isnan(wrong).all()


@pytest.mark.parametrize("mode", MODES)
def test_a_batch_of_nothing_but_padding_is_0(mode):
    model = token_model()

    def losses(logits, ids, weights):
        return ops.stack([TokenCrossentropy()(LABELS, model(ids)), TokenCrossentropy()(LABELS, logits, weights)])

    nothing = np.zeros((B, T), "float32")
    assert_close(run(mode, losses, LOGITS, nothing.astype("int32"), nothing), np.zeros(2), tolerance=0)
    slopes = gradient(mode, losses, LOGITS, nothing.astype("int32"), nothing)
    assert_close(slopes, np.zeros((B, T, V)), tolerance=0)


@pytest.mark.parametrize("mode", MODES)
def test_gradient(mode):
    """(softmax - one-hot) w / sum(w), exactly zero at padding."""
    weights = TOKENS * REAL
    exponentials = np.exp(LOGITS.astype("float64"))
    expected = exponentials / exponentials.sum(axis=-1, keepdims=True) - np.eye(V)[LABELS]
    expected *= (weights / weights.sum())[..., None]

    slopes = gradient(mode, lambda logits, labels, w: TokenCrossentropy()(labels, logits, w), LOGITS, LABELS, weights)

    assert_close(slopes, expected)
    assert (slopes[~REAL] == 0).all()


def test_negative_weights_keep_their_labels():
    """As a policy gradient has them: advantages, summed."""
    weights = np.where(TOKENS > 0.5, TOKENS, -TOKENS)
    expected = sum(weights[i] * token_loss(LOGITS[i], LABELS[i]) for i in np.ndindex(B, T))
    assert_close(
        TokenCrossentropy(reduction="sum")(LABELS, LOGITS, weights), np.array(expected), tolerance=2e-6
    )  # a sum


def test_reductions():
    each = np.array([[token_loss(LOGITS[b, t], LABELS[b, t]) for t in range(T)] for b in range(B)])
    weighted = each * TOKENS
    for reduction, expected in {
        None: weighted,
        "none": weighted,
        "sum": weighted.sum(),
        "mean": weighted.mean(),
    }.items():
        loss = TokenCrossentropy(reduction=reduction)
        assert_close(loss(LABELS, LOGITS, TOKENS), np.array(expected), tolerance=2e-6)


def test_lists_and_one_axis():
    assert_close(TokenCrossentropy()([[2, 0]], [[[0.0] * 4] * 2]), np.log(4))
    flat = TokenCrossentropy()(LABELS.reshape(-1), LOGITS.reshape(-1, V), TOKENS.reshape(-1))
    assert_close(flat, np.array(mean_loss(LOGITS, LABELS, TOKENS)))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float32"])
def test_dtype_of_the_labels(dtype):
    expected = np.array(mean_loss(LOGITS, LABELS, REAL))
    assert_close(TokenCrossentropy()(LABELS.astype(dtype), LOGITS, REAL), expected)


def test_int64_labels_do_not_wrap_around():
    if BACKEND == "jax":
        pytest.skip("JAX cuts int64 off before we see it")
    assert np.isnan(to_numpy(TokenCrossentropy()(LABELS + 2**32, LOGITS)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_precision_logits(dtype):
    logits = ops.cast(30 * LOGITS, dtype)
    loss = TokenCrossentropy()(LABELS, logits)
    assert keras.backend.standardize_dtype(loss.dtype) == "float32"
    assert_close(loss, np.array(mean_loss(to_numpy(ops.cast(logits, "float32")), LABELS, np.ones((B, T)))))


@pytest.fixture
def float16():
    floatx = keras.config.floatx()
    keras.config.set_floatx("float16")
    yield
    keras.config.set_floatx(floatx)


@pytest.mark.usefixtures("float16")
def test_floatx_float16_leaves_the_ids_alone():
    """Between 2,048 and 4,096 float16 holds the even numbers only."""
    size = 3001
    labels = np.array([[2049, 2051], [3000, 2999]])
    logits = np.random.default_rng(0).normal(size=(2, 2, size)).astype("float16")
    expected = mean_loss(logits, labels, np.ones((2, 2)))
    model = keras.Sequential([keras.Input((2, size)), keras.layers.Activation("linear")])
    model.compile(loss=TokenCrossentropy())

    assert_close(TokenCrossentropy()(labels, logits), np.array(expected))
    assert_close(model.evaluate(logits, labels, verbose=0), expected, tolerance=1e-3)  # Keras reports it in floatx


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_dtype_that_does_not_hold_ids_is_refused(dtype):
    with pytest.raises(ValueError, match=f"hold the ids.*dtype={dtype}"):
        TokenCrossentropy(dtype=dtype)


@pytest.mark.parametrize(
    ("labels", "logits", "weights"),
    [
        ((B, T, 1), (B, T, V), None),
        ((B, T + 1), (B, T, V), None),
        ((B, T), (B, T, V), (T,)),
        ((B, T), (B, T, V), (B, 2)),
    ],
)
def test_wrong_shapes(labels, logits, weights):
    with pytest.raises(ValueError, match="shape"):
        TokenCrossentropy()(np.zeros(labels), np.zeros(logits), None if weights is None else np.ones(weights))


@pytest.mark.parametrize(("given", "jit_compile"), [("none", False), ("(B, T)", BACKEND != "torch")])
def test_fit_evaluate_and_custom_loop(given, jit_compile):
    """All three give the loop's number; fit moves the kernel by the gradient of that number."""
    weights, full = WEIGHTS[given]
    model = token_model()
    table, kernel, _ = model.get_weights()
    logits, full = logits_of(model, IDS), full * REAL
    expected = mean_loss(logits, LABELS, full)
    exponentials = np.exp(logits.astype("float64"))
    slopes = exponentials / exponentials.sum(axis=-1, keepdims=True) - np.eye(V)[LABELS]
    slopes = np.einsum("btd,btv,bt->dv", table[IDS], slopes, full / full.sum())
    model.compile(keras.optimizers.SGD(1.0), TokenCrossentropy(), jit_compile=jit_compile)

    assert_close(TokenCrossentropy()(LABELS, model(IDS), weights), np.array(expected))
    assert_close(model.evaluate(IDS, LABELS, batch_size=B, sample_weight=weights, verbose=0), expected)
    history = model.fit(IDS, LABELS, batch_size=B, sample_weight=weights, verbose=0).history
    assert_close(history["loss"], [expected])
    assert_close(model.get_weights()[1], kernel - slopes)


def test_length_of_the_padding_makes_no_difference():
    losses = []
    for padding in (0, 8):
        model = token_model()
        model.compile(keras.optimizers.SGD(1.0), TokenCrossentropy(), jit_compile=False)
        ids, labels = (np.pad(array, ((0, 0), (0, padding))) for array in (IDS, LABELS))
        losses.append(model.fit(ids, labels, batch_size=B, epochs=3, verbose=0).history["loss"])
    assert_close(losses[0], losses[1])


@needs_tensorflow
def test_gradient_tape():
    import tensorflow as tf

    model, loss = token_model(), TokenCrossentropy()

    @tf.function
    def step(ids, labels):
        with tf.GradientTape() as tape:
            value = loss(labels, model(ids))
        return value, tape.gradient(value, model.trainable_variables[1])

    value, slopes = step(tf.constant(IDS), tf.constant(LABELS))
    assert_close(value, np.array(mean_loss(logits_of(model, IDS), LABELS, REAL)))
    assert np.isfinite(slopes).all()


def test_config():
    loss = TokenCrossentropy(reduction="sum", name="other", dtype="float64")
    assert loss.get_config() == {"name": "other", "reduction": "sum", "dtype": "float64"}
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(again) is TokenCrossentropy
    assert again.get_config() == loss.get_config()
    assert keras.saving.get_registered_name(TokenCrossentropy) == "keras_lt>TokenCrossentropy"


def test_in_a_saved_model(tmp_path):
    model = token_model()
    model.compile("sgd", TokenCrossentropy(reduction="sum"))
    model.fit(IDS, LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert type(again.loss) is TokenCrossentropy
    assert again.loss.reduction == "sum"
    results = [each.evaluate(IDS, LABELS, verbose=0) for each in (model, again)]
    assert_close(*results, tolerance=0)
