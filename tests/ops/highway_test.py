"""S2's gate between what a layer made of its inputs and the inputs themselves."""

import numpy as np
import pytest

from keras_lt.ops import highway
from testing import MODES, assert_close, gradient, run

SHAPE = (2, 3, 5)


def example():
    random = np.random.default_rng(0)
    inputs, transformed = random.normal(size=(2, *SHAPE)).astype("float32")
    return inputs, transformed, random.uniform(size=SHAPE).astype("float32")


@pytest.mark.parametrize("mode", MODES)
def test_values_are_those_of_the_equation(mode):
    inputs, transformed, gate = example()
    expected = np.empty(SHAPE)
    for place in np.ndindex(SHAPE):
        x, f, g = (float(array[place]) for array in (inputs, transformed, gate))
        expected[place] = f * g + x * (1 - g)
    assert_close(run(mode, highway, inputs, transformed, gate), expected)


@pytest.mark.parametrize("mode", MODES)
def test_gradients_are_those_of_the_equation(mode):
    inputs, transformed, gate = example()
    slopes = gradient(mode, lambda arguments: highway(*arguments), (inputs, transformed, gate))
    # dH/dx = 1 - g, dH/dF = g, dH/dg = F - x
    assert_close(slopes, (1 - gate, gate, transformed - inputs))


def test_a_closed_gate_carries_the_inputs_and_an_open_one_the_transformed():
    inputs, transformed, _ = example()
    closed, opened = (run("eager", highway, inputs, transformed, np.full(SHAPE, gate, "float32")) for gate in (0, 1))
    np.testing.assert_array_equal(closed, inputs)
    np.testing.assert_array_equal(opened, transformed)
