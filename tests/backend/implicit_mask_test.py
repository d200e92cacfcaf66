"""The mask that Keras keeps for a tensor, read in every way of running it."""

import gc

import keras
import numpy as np
import pytest
from keras import ops

from keras_lt.backend import implicit_mask
from testing import MODES, needs_tensorflow, run, to_numpy

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


def test_leaves_nothing_behind():
    output = embedding()(IDS)
    implicit_mask(output)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(20):
        implicit_mask(output)
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
