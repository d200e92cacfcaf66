"""Arrays given to `fit` on TensorFlow: the rows that Keras would take, without its pipeline."""

import keras
import numpy as np
import pytest

from keras_lt.models import HighwayNetwork
from keras_lt.models.array_batches import with_array_batches
from testing import assert_close, needs_tensorflow

pytestmark = needs_tensorflow

ROWS, CLASSES = 23, 3
X = np.random.default_rng(5).random((ROWS, 2, 3, 1)).astype("float32")
Y = np.arange(ROWS) % CLASSES
WEIGHT = np.random.default_rng(6).random(ROWS)


def trained(fit, **arguments):
    keras.utils.set_random_seed(8)
    model = HighwayNetwork(CLASSES, 1, 6, image_shape=(2, 3, 1))
    model.compile(steps_per_execution=1, weighted_metrics=["accuracy"])
    history = fit(model, X, Y, epochs=2, shuffle=False, verbose=0, **arguments)
    return history.history, model.get_weights()


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"batch_size": 5, "sample_weight": WEIGHT},
        {"batch_size": 4, "validation_split": 0.3, "sample_weight": WEIGHT},
        {"batch_size": 4, "validation_data": (X[:7], Y[:7], WEIGHT[:7]), "validation_batch_size": 2},
        {"batch_size": 4, "validation_data": [X[:7], Y[:7]]},
        {"batch_size": 4, "class_weight": {0: 1.0, 1: 0.5, 2: 2.0}},
        {"steps_per_epoch": 3},
    ],
    ids=lambda arguments: "-".join(arguments) or "alone",
)
def test_as_keras(arguments):
    expected = trained(keras.Model.fit, **arguments)
    actual = trained(HighwayNetwork.fit, **arguments)
    assert_close(actual[0], expected[0], 2e-6)
    assert_close(actual[1], expected[1], 2e-6)


def orders(epochs):
    dataset = with_array_batches({"x": Y + 10, "y": np.arange(ROWS), "batch_size": 4})["x"]
    return [np.concatenate([y for _, y in dataset.as_numpy_iterator()]).tolist() for _ in range(epochs)]


def test_shuffled():
    keras.utils.set_random_seed(3)
    first, second = orders(2)
    assert sorted(first) == sorted(second) == list(range(ROWS))
    assert first != second and first != sorted(first)
    assert orders(1)[0] not in (first, second)
    keras.utils.set_random_seed(3)
    assert orders(2) == [first, second]


def test_batches():
    """Dictionaries stay dictionaries, floats get Keras's dtype, the last batch is what is left."""
    x = {"a": np.arange(7, dtype="float64"), "b": np.arange(14).reshape(7, 2)}
    arguments = with_array_batches({"x": x, "y": np.arange(7), "batch_size": 3, "shuffle": False, "epochs": 2})
    assert set(arguments) == {"x", "validation_data", "shuffle", "epochs"}
    batches = list(arguments["x"].as_numpy_iterator())
    assert [len(y) for _, y in batches] == [3, 3, 1] and len(arguments["x"]) == 3
    assert batches[0][0]["a"].dtype == "float32" and batches[0][0]["b"].dtype == "int64"
    np.testing.assert_array_equal(np.concatenate([x["b"] for x, _ in batches]), x["b"])
    assert not arguments["x"].options().autotune.enabled


@pytest.mark.parametrize(
    "arguments",
    [
        {"x": X},
        {"x": X, "y": Y[:5]},
        {"x": [X, X], "y": Y},
        {"x": X, "y": Y.tolist()},
        {"x": X, "y": np.array(["a"] * ROWS)},
        {"x": X[:0], "y": Y[:0]},
        {"x": X, "y": Y, "shuffle": "batch"},
        {"x": X, "y": Y, "class_weight": {0: 1.0, 1: 1.0, 2: 1.0}},
        {"x": X, "y": Y, "steps_per_epoch": 2},
        {"x": keras.ops.ones((4, 2)), "y": np.ones(4)},
    ],
)
def test_left_to_keras(arguments):
    assert with_array_batches(arguments) == arguments


def test_nothing_is_left_for_validation():
    arguments = {"x": X[:2], "y": Y[:2], "validation_split": 0.1}
    assert with_array_batches({**arguments, "validation_split": 0.9})["validation_split"] == 0.9
    model = HighwayNetwork(CLASSES, 1, 6, image_shape=(2, 3, 1))
    model.compile()
    with pytest.raises(ValueError, match="not sufficient to split"):
        model.fit(**{**arguments, "validation_split": 0.9}, verbose=0)
