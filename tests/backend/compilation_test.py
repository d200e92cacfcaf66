"""What `jit_compile="auto"` means."""

import types

import keras

from keras_lt.backend import prefers_jit
from testing import BACKEND, needs_tensorflow


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
