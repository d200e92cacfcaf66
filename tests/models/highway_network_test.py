"""HighwayNetwork against NumPy written from S2, and its gradient against finite differences."""

import keras
import numpy as np
import pytest

from keras_lt.models import HighwayNetwork
from testing import BACKEND, MODES, assert_close, gradient, run, to_numpy

LEAN_MODES = [mode for mode in MODES if (BACKEND, mode) != ("jax", "eager")]
B, H, W, CLASSES, LAYERS, WIDTH = 3, 4, 5, 6, 2, 7
ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh}


def small(channels=1, **arguments):
    """A built model with weights from NumPy, large enough for every one to matter."""
    model = HighwayNetwork(CLASSES, LAYERS, WIDTH, **arguments, image_shape=(H, W, channels))
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.normal(0, 0.3, weight.shape))
    return model


def example(channels=1):
    return np.random.default_rng(1).normal(size=(B, H, W, channels)).astype("float32")


def s2_forward(model, images, activation="relu"):
    """What goes into the last layer and what comes out of it, for each image."""
    function = ACTIVATIONS[activation]
    dense, *highways = model.feature_layers[1:]
    features, outputs = [], []
    for image in images.astype("float64"):
        x = function(image.ravel() @ to_numpy(dense.kernel.value) + to_numpy(dense.bias.value))
        for highway in highways:
            kernel, bias = to_numpy(highway.projection.kernel.value), to_numpy(highway.projection.bias.value)
            gate = 1 / (1 + np.exp(-(x @ kernel[:, WIDTH:] + bias[WIDTH:])))
            x = function(x @ kernel[:, :WIDTH] + bias[:WIDTH]) * gate + x * (1 - gate)
        powers = np.exp(x @ to_numpy(model.classifier.kernel.value) + to_numpy(model.classifier.bias.value))
        features.append(x)
        outputs.append(powers / powers.sum())
    return np.stack(features), np.stack(outputs)


@pytest.mark.parametrize("mode", LEAN_MODES)
@pytest.mark.parametrize(("activation", "channels"), [("relu", 1), ("tanh", 3)])
def test_values_are_those_of_s2(activation, channels, mode):
    model, images = small(channels, activation=activation), example(channels)
    found = run(mode, lambda images: (model(images, return_features=True), model(images)), images)
    assert_close(found, s2_forward(model, images, activation))
    assert len(model.feature_layers) == 2 + LAYERS


def test_gradient_equals_finite_differences():
    model, images = small(activation="tanh"), example()
    coefficients = np.random.default_rng(2).normal(size=(B, CLASSES)).astype("float32")
    slopes = np.empty(images.shape)
    for place in np.ndindex(images.shape):
        step = np.zeros(images.shape)
        step[place] = 1e-5
        ahead, behind = (s2_forward(model, images + sign * step, "tanh")[1] for sign in (1, -1))
        slopes[place] = ((ahead - behind) * coefficients).sum() / 2e-5
    found = gradient(LEAN_MODES[0], lambda images: keras.ops.multiply(model(images), coefficients), images)
    assert_close(found, slopes)
    assert np.abs(slopes).max() > 0.03


def test_closed_gates_carry_the_first_layer_to_the_last():
    model = HighwayNetwork(CLASSES, 9, WIDTH, transform_gate_bias=-30.0, image_shape=(H, W, 1))
    images, dense = example(), model.feature_layers[1]
    expected = np.maximum(images.reshape(B, -1) @ to_numpy(dense.kernel.value) + to_numpy(dense.bias.value), 0)
    assert_close(run(LEAN_MODES[0], lambda images: model(images, return_features=True), images), expected)
    assert np.count_nonzero(expected) > expected.size / 4


def test_number_of_parameters():
    count = (4 * 5 * 3 * 7 + 7) + 11 * 2 * (7 * 7 + 7) + (7 * 6 + 6)
    model = HighwayNetwork(6, 11, 7, image_shape=(4, 5, 3))
    assert model.count_params() == count
    biases = [to_numpy(layer.projection.bias.value) for layer in model.feature_layers[2:]]
    np.testing.assert_array_equal(biases, [[0] * 7 + [-2] * 7] * 11)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 0}, "`num_layers` must be a positive integer. Received: num_layers=0"),
        ({"hidden_dim": 2.5}, "`hidden_dim` must be a positive integer. Received: hidden_dim=2.5"),
        ({"activation": "nope"}, "nope"),
    ],
)
def test_wrong_arguments_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        HighwayNetwork(**{"num_classes": 3, "num_layers": 1, "hidden_dim": 4, **arguments})
