"""Perplexity against a loop over the real tokens of an epoch; and what it costs in a compiled step."""

import itertools
import math
import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_lt.losses import TokenCrossentropy
from keras_lt.metrics import Perplexity
from testing import BACKEND, MODES, assert_close, needs_jax, needs_tensorflow, run, to_numpy

T, D, V = 5, 7, 11
SIZES = (3, 2, 1)  # rows of each batch
IDS = np.array([[4, 1, 0, 0, 0], [2, 3, 9, 8, 10], [0, 0, 5, 6, 0], [7, 0, 0, 0, 0], [1, 2, 3, 0, 0], [9, 9, 9, 9, 9]])
REAL = IDS != 0
LABELS = np.random.default_rng(0).integers(0, V, IDS.shape)
LOGITS = np.random.default_rng(1).normal(size=(*IDS.shape, V)).astype("float32")
WEIGHTS = np.random.default_rng(2).random(IDS.shape).astype("float32")


def batches(*arrays):
    borders = itertools.pairwise(np.cumsum((0, *SIZES)))
    return [[array[start:end] for array in arrays] for start, end in borders]


def perplexity(logits, labels, weights):
    total = count = 0.0
    for index in zip(*np.nonzero(weights), strict=True):
        token = logits[index].astype("float64")
        total += weights[index] * (math.log(sum(math.exp(x) for x in token)) - token[labels[index]])
        count += weights[index]
    return math.exp(total / count)


def token_model():
    """Logits of each id alone, with Keras's implicit mask."""
    model = keras.Sequential(
        [keras.Input((None,), dtype="int32"), keras.layers.Embedding(V, D, mask_zero=True), keras.layers.Dense(V)]
    )
    random = np.random.default_rng(3)
    model.set_weights([0.5 * random.normal(size=weight.shape) for weight in model.weights])
    return model


def logits_of(model, ids):
    table, kernel, bias = model.get_weights()
    return table[ids] @ kernel + bias


@pytest.mark.parametrize("mode", MODES)
def test_exact_over_batches_of_unequal_size(mode):
    model, metric = token_model(), Perplexity()

    def epochs(zero, batches):
        """Three at once: plain, with sample weights, and with those and the implicit mask."""
        plain = weighted = both = [zero, zero]
        for labels, ids, logits, weights in batches:
            plain = metric.stateless_update_state(plain, labels, logits)
            weighted = metric.stateless_update_state(weighted, labels, logits, weights)
            both = metric.stateless_update_state(both, labels, model(ids), weights)
        return [metric.stateless_result(variables) for variables in (plain, weighted, both)]

    results = run(mode, epochs, np.zeros((), "float32"), batches(LABELS, IDS, LOGITS, WEIGHTS))

    assert_close(results[0], perplexity(LOGITS, LABELS, np.ones(IDS.shape)))
    assert_close(results[1], perplexity(LOGITS, LABELS, WEIGHTS))
    assert_close(results[2], perplexity(logits_of(model, IDS), LABELS, WEIGHTS * REAL))


def test_state_result_and_reset():
    metric = Perplexity()
    assert float(metric.result()) == 1.0
    for labels, logits in batches(LABELS, LOGITS):
        metric.update_state(labels, logits)
    assert float(metric.token_count) == IDS.size
    assert_close(metric.result(), np.array(perplexity(LOGITS, LABELS, np.ones(IDS.shape))))
    metric.reset_state()
    assert [float(variable) for variable in metric.variables] == [0.0, 0.0]
    metric.update_state([[2, 0]], [[[0.0] * 4] * 2])
    assert_close(metric.result(), np.array(4.0))


@pytest.mark.parametrize("weights", [None, WEIGHTS, WEIGHTS[:, 0], REAL])
def test_is_the_exponential_of_the_loss_of_one_batch(weights):
    for logits in (LOGITS, token_model()(IDS)):
        metric = Perplexity()
        metric.update_state(LABELS, logits, weights)
        assert_close(metric.result(), ops.exp(TokenCrossentropy()(LABELS, logits, weights)))


def test_labels_out_of_range():
    """Where they do not count they do not matter; where they do the result is NaN, until the next reset."""
    metric = Perplexity()
    metric.update_state(np.where(REAL, LABELS, -1), LOGITS, REAL)
    assert_close(metric.result(), np.array(perplexity(LOGITS, LABELS, REAL)))
    metric.update_state(np.where(REAL, V, LABELS), LOGITS, REAL)
    assert np.isnan(to_numpy(metric.result()))
    metric.reset_state()
    metric.update_state(LABELS, LOGITS, np.zeros(IDS.shape))
    assert float(metric.result()) == 1.0


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
def test_dtypes(dtype):
    for logits in (LOGITS.astype("float64"), LOGITS.tolist()):
        metric = Perplexity(dtype="float64" if BACKEND == "tensorflow" else "float32")
        metric.update_state(LABELS.astype(dtype), logits, WEIGHTS)
        assert_close(metric.result(), np.array(perplexity(LOGITS, LABELS, WEIGHTS)))


@pytest.mark.parametrize("weights", [None, WEIGHTS], ids=["mask", "mask and weights"])
def test_fit_and_evaluate(weights):
    """Of an epoch in batches of unequal size; Keras's `loss`, a mean of batch means, is another number there."""
    model = token_model()
    expected = perplexity(logits_of(model, IDS), LABELS, REAL if weights is None else weights * REAL)
    model.compile(keras.optimizers.SGD(0.0), TokenCrossentropy(), weighted_metrics=[Perplexity()], jit_compile=False)

    evaluated = model.evaluate(IDS, LABELS, batch_size=4, sample_weight=weights, verbose=0, return_dict=True)
    if BACKEND == "jax":  # whose training step in Keras loses the implicit mask of the logits
        weights = REAL.astype("float32") if weights is None else weights * REAL
    history = model.fit(IDS, LABELS, batch_size=4, sample_weight=weights, epochs=2, verbose=0, shuffle=False).history

    assert_close(history["perplexity"], [expected, expected])
    assert_close(evaluated["perplexity"], expected)
    assert abs(evaluated["loss"] - math.log(expected)) > 1e-3


def test_config_and_saved_model(tmp_path):
    metric = Perplexity(name="other", dtype="float64")
    assert metric.get_config() == {"name": "other", "dtype": "float64"}
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert type(again) is Perplexity
    assert again.get_config() == metric.get_config()

    model = token_model()
    model.compile("sgd", TokenCrossentropy(), weighted_metrics=[Perplexity()])
    model.fit(IDS, LABELS, verbose=0)
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert_close(*[each.evaluate(IDS, LABELS, verbose=0) for each in (model, again)], tolerance=0)


def exponentials(program, size):
    """How many arrays of at least that many numbers an XLA program takes the exponential of."""
    shapes = re.findall(r"= \w+\[([\d,]*)\]\S* exponential\(", program)
    return sum(math.prod(int(n) for n in shape.split(",") if n) >= size for shape in shapes)


@needs_tensorflow
def test_costs_no_second_softmax_on_tensorflow():
    import tensorflow as tf

    class Colder(Perplexity):
        def update_state(self, y_true, y_pred, sample_weight=None):
            super().update_state(y_true, 2 * y_pred, sample_weight)

    counts = []
    for metrics in ([], [Perplexity()], [Colder()]):
        model = token_model()
        model.compile(keras.optimizers.SGD(0.0), TokenCrossentropy(), weighted_metrics=metrics)
        step = tf.function(model.train_step, jit_compile=True)
        data = tf.constant(IDS), tf.constant(LABELS)
        model.train_step(data)  # builds what Keras builds at the first step
        if len(counts) == 1:
            assert_close(step(data)["perplexity"], perplexity(logits_of(model, IDS), LABELS, REAL))
        program = step.experimental_get_compiler_ir(data)(stage="optimized_hlo")
        counts.append(exponentials(program, LOGITS.size))
    assert counts[0] > 0
    assert counts == [counts[0], counts[0], counts[0] + 1]  # the softmax of other logits would show


@needs_jax
def test_costs_no_second_softmax_on_jax():
    import jax

    loss, metric = TokenCrossentropy(), Perplexity()

    def step(logits, labels, weights):
        return jax.value_and_grad(lambda logits: loss(labels, logits, weights))(logits)

    def step_with_metric(logits, labels, weights, variables):
        return step(logits, labels, weights), metric.stateless_update_state(variables, labels, logits, weights)

    arguments = LOGITS, LABELS, WEIGHTS
    variables = [np.zeros((), "float32")] * 2
    counts = [
        exponentials(jax.jit(function).lower(*inputs).compile().as_text(), LOGITS.size)
        for function, inputs in [(step, arguments), (step_with_metric, (*arguments, variables))]
    ]
    assert counts[0] > 0
    assert counts[1] == counts[0]
