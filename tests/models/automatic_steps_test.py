"""How many steps run at a time when nobody says: from the data, the callbacks and the size of the model."""

import keras
import numpy as np
import pytest

from keras_lt.backend import GroupedTrainFunction
from keras_lt.models import LeNet, LittleTransformer
from keras_lt.models.automatic_steps import automatic_steps
from testing import BACKEND


def products(shape):
    return 1e5


X = np.zeros((640, 7), "int32")


def test_arrays():
    """6 * 1e5 products in each of 32 rows are 0.1 ms at 2e11 a second: half a second holds more than 16 steps."""
    assert automatic_steps(products, X) == 10  # of 20 batches: two whole groups
    assert automatic_steps(products, X, batch_size=20) == 16  # of 32
    assert automatic_steps(products, {"token_ids": X, "padding_mask": X}, validation_split=0.5) == 10


@pytest.mark.parametrize(("number", "expected"), [(1e9, 1), (4e8, 1), (2e8, 2), (5e7, 6)])
def test_a_group_takes_half_a_second(number, expected):
    assert automatic_steps(lambda shape: number, np.zeros((32 * 60, 7)), batch_size=32) == expected


def test_large_batches_are_not_stacked():
    assert automatic_steps(products, np.broadcast_to(np.float32(0), (640, 600, 600, 3)), batch_size=32) == 1


def test_the_bar_goes_beyond_the_end_as_little_as_can_be():
    assert automatic_steps(products, X, batch_size=10) == 16  # 64 batches
    assert automatic_steps(products, X[:630], batch_size=10) == 9  # 63 batches


def test_unknown_lengths():
    assert automatic_steps(products, (row for row in X)) == 1
    assert automatic_steps(products, (row for row in X), steps_per_epoch=64) == 1
    assert automatic_steps(products, None) == 1
    assert automatic_steps(lambda shape: None, X) == 1


def test_tensorflow_datasets():
    tf = pytest.importorskip("tensorflow")
    dataset = tf.data.Dataset.from_tensor_slices(({"a": X, "b": X}, X))
    assert automatic_steps(products, dataset.batch(10)) == 16
    assert automatic_steps(products, dataset.batch(10).filter(lambda x, y: True)) == 1
    assert automatic_steps(products, dataset.batch(10).repeat()) == 1
    assert automatic_steps(products, dataset.batch(10).repeat(), steps_per_epoch=101) > 1
    # Keras counts whole groups on its way through 64 batches, and would begin anew too early.
    assert automatic_steps(products, dataset.batch(10), steps_per_epoch=31) == 1
    assert automatic_steps(products, dataset.batch(10), steps_per_epoch=32) == 16


def test_pydatasets():
    class Batches(keras.utils.PyDataset):
        num_batches = 64

        def __getitem__(self, index):
            raise AssertionError("nobody has to look")

    assert automatic_steps(products, Batches()) == 16


class Watcher(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        pass


class OldWatcher(keras.callbacks.Callback):
    def on_batch_begin(self, batch, logs=None):
        pass


@pytest.mark.parametrize(
    ("callback", "notices"),
    [
        (Watcher(), True),
        (OldWatcher(), True),
        (keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: None), True),
        (keras.callbacks.TerminateOnNaN(), True),
        (keras.callbacks.ModelCheckpoint("x.keras", save_freq=3), True),
        (keras.callbacks.ModelCheckpoint("x.keras"), False),
        (keras.callbacks.BackupAndRestore("x"), False),
        (keras.callbacks.EarlyStopping(), False),
        (keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: None), False),
        (keras.callbacks.ProgbarLogger(), False),
        (keras.callbacks.History(), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_callbacks(callback, notices):
    for callbacks in (callback, [keras.callbacks.EarlyStopping(), [callback]]):
        assert automatic_steps(products, X, callbacks=callbacks) == (1 if notices else 10)
    assert automatic_steps(products, X, callbacks=keras.callbacks.CallbackList([callback])) == (1 if notices else 10)


def grouped(model, x, y, **arguments):
    model.compile(**arguments)
    model.fit(x, y, batch_size=4, verbose=0)
    return isinstance(model.train_function, GroupedTrainFunction)


def test_models():
    """Language models are grouped where there are programs of XLA; images are not."""
    small = LittleTransformer(11, 5, num_layers=1, num_heads=2, hidden_dim=8)
    ids = np.zeros((16, 5), "int32")
    assert grouped(small, ids, ids) == (BACKEND != "torch")
    assert small.steps_per_execution == 1
    assert not grouped(small, ids, ids, jit_compile=False)
    images, labels = np.zeros((16, 12, 12, 1), "float32"), np.zeros(16, "int32")
    assert not grouped(LeNet(3, (2, 2), 3, hidden_units=(4,)), images, labels)


def test_what_auto_meant_is_not_saved(tmp_path):
    model = LittleTransformer(11, 5, num_layers=1, num_heads=2, hidden_dim=8)
    model.compile()
    assert model.get_compile_config()["steps_per_execution"] == "auto"
    model.compile(steps_per_execution=3)
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras").steps_per_execution == 3


@pytest.mark.parametrize("steps", [0, -1, 2.5, "many"])
def test_wrong_numbers(steps):
    model = LittleTransformer(11, 5, num_layers=1, num_heads=2, hidden_dim=8)
    with pytest.raises(ValueError, match="`steps_per_execution` must be a positive integer"):
        model.compile(steps_per_execution=steps)


def test_ids_without_rows_get_the_models_own_error():
    model = LittleTransformer(11, 5, num_layers=1, num_heads=2, hidden_dim=8)
    model.compile()
    with pytest.raises(ValueError, match=r"`token_ids` must have the shape \(B, T\)"):
        model.fit(np.zeros(40, "int32"), np.zeros(40, "int32"), verbose=0)
