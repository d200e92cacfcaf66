"""The mask that Keras keeps for a tensor, read in every way of running it."""

import gc

import keras
import numpy as np
import pytest
from keras import ops

from keras_lt.backend import implicit_mask, with_implicit_mask
from testing import MODES, assert_close, needs_tensorflow, run, to_numpy

IDS = np.array([[4, 1, 0], [2, 0, 0]])


def embedding():
    layer = keras.layers.Embedding(5, 3, mask_zero=True)
    layer.build((None, None))
    return layer


@pytest.mark.parametrize("mode", MODES)
def test_the_mask_of_a_layer(mode):
    layer, dense = embedding(), keras.layers.Dense(7)
    dense.build((None, None, 3))

    def function(ids):
        return implicit_mask(layer(ids)), implicit_mask(dense(layer(ids)))

    for mask in run(mode, function, IDS):
        assert mask.dtype == bool
        np.testing.assert_array_equal(mask, IDS != 0)


@pytest.mark.parametrize("mode", MODES)
def test_no_mask(mode):
    masked, layer = embedding(), keras.layers.Embedding(5, 3)
    layer.build((None, None))
    assert run(mode, lambda ids: implicit_mask(layer(ids)), IDS) is None
    assert run(mode, lambda ids: implicit_mask(ops.add(masked(ids), 1)), IDS) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32"])
def test_any_dtype(dtype):
    assert implicit_mask(ops.ones((2, 3), dtype)) is None
    layer = keras.layers.Embedding(5, 3, mask_zero=True, dtype=dtype if "float" in dtype else None)
    np.testing.assert_array_equal(to_numpy(implicit_mask(layer(IDS))), IDS != 0)


@pytest.mark.parametrize("value", [IDS, IDS.tolist(), [IDS], 3.0, None, {"logits": IDS}], ids=str)
def test_what_no_layer_returned_has_none(value):
    assert implicit_mask(value) is None


def test_the_tensor_keeps_its_mask():
    output = embedding()(IDS)
    first, second = implicit_mask(output), implicit_mask(output)
    np.testing.assert_array_equal(to_numpy(first), to_numpy(second))


@pytest.mark.parametrize("mode", MODES)
def test_a_mask_that_is_given(mode):
    """Layers see it, and it changes no number; a mask that is there already stays."""
    layer = embedding()

    def function(x, ids, mask):
        given = with_implicit_mask(x, mask)
        return given, implicit_mask(given), implicit_mask(with_implicit_mask(layer(ids), mask))

    x, mask = np.random.default_rng(0).normal(size=(2, 3, 5)).astype("float32"), np.array([[0, 1, 1], [1, 1, 0]], bool)
    given, found, kept = run(mode, function, x, IDS, mask)

    np.testing.assert_array_equal(given, x)
    np.testing.assert_array_equal(found, mask)
    np.testing.assert_array_equal(kept, IDS != 0)


def test_no_mask_to_give():
    x = ops.ones((2, 3))
    assert with_implicit_mask(x, None) is x
    assert with_implicit_mask(IDS, IDS != 0) is IDS


class Masked(keras.Model):
    """As our models are: the mask comes from an input that no inner layer knows to be one."""

    def __init__(self):
        super().__init__()
        self.supports_masking = True
        self.dense = keras.layers.Dense(5)
        self.dense.build((None, None, 1))
        self.built = True

    def call(self, inputs):
        return self.dense(inputs["x"])

    def compute_mask(self, inputs, previous_mask=None):
        return inputs["padding_mask"]

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        y_pred = with_implicit_mask(y_pred, self.compute_mask(x))
        return super().compute_loss(x, y, y_pred, sample_weight, training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        return super().compute_metrics(x, y, with_implicit_mask(y_pred, self.compute_mask(x)), sample_weight)


def test_given_to_loss_and_metrics_in_fit_and_evaluate():
    """Keras's own mean of |y - y'| over the open places: the closed ones hold a number that would show."""
    model = Masked()
    model.set_weights([np.zeros((1, 5)), np.zeros(5)])
    model.compile(keras.optimizers.SGD(0.0), "mae", metrics=["mae"])
    y = np.where(IDS[..., None] != 0, IDS[..., None], 1e6).astype("float32")
    data = {"x": np.ones((2, 3, 1), "float32"), "padding_mask": IDS != 0}

    history = model.fit(data, y, verbose=0).history
    evaluated = model.evaluate(data, y, verbose=0, return_dict=True)

    expected = {"loss": IDS.sum() / 3, "mae": IDS.sum() / 3}
    assert_close(evaluated, expected)
    assert_close({name: values[0] for name, values in history.items()}, expected)


def test_leaves_nothing_behind():
    output = embedding()(IDS)
    with_implicit_mask(output, implicit_mask(output))
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(20):
        with_implicit_mask(output, implicit_mask(output))
    gc.collect()
    assert len(gc.get_objects()) - before < 20


@needs_tensorflow
def test_unknown_sizes():
    import tensorflow as tf

    layer = embedding()
    function = tf.function(
        lambda ids: implicit_mask(layer(ids)), input_signature=[tf.TensorSpec((None, None), "int32")], jit_compile=True
    )
    np.testing.assert_array_equal(function(IDS), IDS != 0)
