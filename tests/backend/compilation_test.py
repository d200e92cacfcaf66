"""What `jit_compile="auto"` means, and functions that are compiled with the weights they read."""

import types

import keras
import numpy as np
import pytest

from keras_lt.backend import compile_function, is_tracing, prefers_jit
from testing import BACKEND, needs_tensorflow, to_numpy


def test_one_device():
    assert prefers_jit() == (True if BACKEND == "tensorflow" else "auto")


def test_keras_takes_it():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse", jit_compile=prefers_jit())
    assert model.jit_compile == (BACKEND != "torch")


@needs_tensorflow
def test_several_replicas(monkeypatch):
    import tensorflow as tf

    strategy = types.SimpleNamespace(num_replicas_in_sync=2)
    monkeypatch.setattr(tf.distribute, "get_strategy", lambda: strategy)
    assert prefers_jit() == "auto"


def test_values_of_variables_are_read_at_every_call():
    variable, traces = keras.Variable(np.array([2.0, 3.0], "float32")), []

    def function(tree):
        traces.append(1)
        return {"product": tree["x"] * variable.value, "shape": keras.ops.zeros(tree["x"].shape)}

    compiled = compile_function(function, [variable])
    x = {"x": keras.ops.convert_to_tensor(np.array([5.0, 7.0], "float32"))}
    np.testing.assert_array_equal(to_numpy(compiled(x))["product"], [10, 21])
    variable.assign(np.array([-1.0, 1.0], "float32"))
    np.testing.assert_array_equal(to_numpy(compiled(x))["product"], [-5, 7])
    assert len(traces) == (2 if BACKEND == "torch" else 1)
    compiled({"x": keras.ops.ones((3, 2))})
    assert len(traces) == (3 if BACKEND == "torch" else 2)


@pytest.mark.skipif(BACKEND != "torch", reason="about PyTorch")
def test_no_gradients():
    variable = keras.Variable(np.array([2.0], "float32"))
    assert not compile_function(lambda x: x * variable.value, [variable])(keras.ops.ones((1,))).requires_grad


@needs_tensorflow
def test_tracing_is_seen():
    import tensorflow as tf

    found = []
    tf.function(lambda: found.append(is_tracing()))()
    assert found == [True]


def test_nothing_is_traced_now():
    assert not is_tracing()
