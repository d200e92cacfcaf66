"""What can be looked at, and what the checks say."""

import keras
import numpy as np
import pytest

from keras_lt.backend import (
    check_ids,
    check_number,
    check_positive,
    check_positive_integer,
    check_positive_integers,
    check_rate,
    is_concrete,
)
from testing import BACKEND, MODES, run


@pytest.mark.parametrize("mode", MODES)
def test_is_concrete(mode):
    """Tensors are, unless they stand for something in a function that is being compiled."""
    seen = []

    def function(x):
        seen.append((is_concrete(x), is_concrete(x + 1), is_concrete(3), is_concrete(np.ones(2))))
        return x

    run(mode, function, np.arange(3))
    assert seen == [(mode == "eager", mode == "eager", True, True)]


@pytest.mark.parametrize("value", [3, 2.5, True, np.int64(3), np.ones((2, 3)), [1, 2], (1, 2)])
def test_python_and_numpy_values_are_concrete(value):
    assert is_concrete(value)


def test_symbolic_tensors_are_not():
    assert not is_concrete(keras.Input((3,)))
    assert not is_concrete(keras.KerasTensor((2, 3)))


@pytest.mark.skipif(BACKEND != "jax", reason="about the transformations of JAX")
def test_traced_by_jax():
    import jax

    seen = []

    def function(x):
        seen.append(is_concrete(x))
        return x.sum()

    jax.grad(function)(np.ones(3))
    jax.vmap(function)(np.ones((2, 3)))
    assert seen == [False, False]


@pytest.mark.parametrize("convert", [list, np.asarray, keras.ops.convert_to_tensor], ids=["list", "array", "tensor"])
def test_ids_in_range_pass(convert):
    for ids in ([0, 10, 3], [[0], [10]], [0.0, 10.0]):
        check_ids(convert(ids), 11)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int64", "bool", "float16"])
def test_dtypes_of_ids(dtype):
    check_ids(np.array([0, 1, 1], dtype), 2)
    check_ids(np.array([], dtype), 2)
    with pytest.raises(ValueError, match=r"\(vocabulary_size=1\)"):
        check_ids(np.array([0, 1, 1], dtype), 1)


@pytest.mark.parametrize(
    ("ids", "received"),
    [
        ([[1, 2, 3], [4, 11, 12]], "11 at [1, 1], and 1 more"),
        ([1, -1, 2], "-1 at [1], and 0 more"),
        (11, "11 at [], and 0 more"),
        ([0.0, 1.5, 2.5], "1.5 at [1], and 1 more"),
        ([0.0, np.nan], "nan at [1], and 0 more"),
        ([0.0, np.inf], "inf at [1], and 0 more"),
        (np.array([2**32 + 3, 2]), "4294967299 at [0], and 0 more"),
    ],
)
def test_what_is_said_of_wrong_ids(ids, received):
    with pytest.raises(ValueError, match="whole numbers") as error:
        check_ids(ids, 11, "positions", "max_sequence_length")
    assert str(error.value) == (
        f"`positions` must be whole numbers from 0 to 10 (max_sequence_length=11). Received: {received}"
    )


@pytest.mark.parametrize("mode", MODES)
def test_ids_that_are_being_traced_pass(mode):
    def function(ids):
        check_ids(ids, 11)
        return ids

    if mode == "eager":
        with pytest.raises(ValueError, match="token_ids"):
            run(mode, function, np.array([11]))
    else:
        run(mode, function, np.array([11]))


def test_positive_integers():
    for value in (1, 7, np.int32(3)):
        check_positive_integer("size", value)
    check_positive_integer("size", None, optional=True)
    for value in (0, -1, 1.0, "1", True, np.float32(1), [1], None):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            check_positive_integer("size", value)
        assert str(error.value) == f"`size` must be a positive integer. Received: size={value!r}"
    with pytest.raises(ValueError, match=r"positive integer or None\. Received: size=0"):
        check_positive_integer("size", 0, optional=True)


def test_rates():
    for value in (0, 0.0, 0.5, 0.999, np.float64(0.5), np.float32(0.5)):
        check_rate("dropout", value)
    for value in (1, 1.0, -0.1, "0.5", True, None, np.nan):
        with pytest.raises(ValueError) as error:  # noqa: PT011
            check_rate("dropout", value)
        assert str(error.value).endswith(f"not including, 1. Received: dropout={value!r}")


def test_ids_that_are_no_numbers():
    with pytest.raises(TypeError, match="integers"):
        check_ids(np.array([["a"]]), 5)


def test_positive():
    for value in (1, 1e-5, np.float32(0.5)):
        check_positive("x", value)
    for value in (0, -1.0, float("inf"), float("nan"), "1", None, True):
        with pytest.raises(ValueError, match=r"`x` must be a number above 0"):
            check_positive("x", value)


def test_numbers():
    for value in (0, 3, 0.5, np.float32(0.5), np.int64(2)):
        check_number("x", value, 0, 3)
    check_number("x", 2**70, 0, whole=True)
    for value in (-1e-9, 3.1, float("inf"), float("nan"), "1", None, True, 1j):
        with pytest.raises(ValueError, match=r"`x` must be a number, from 0 to 3\. Received: x="):
            check_number("x", value, 0, 3)
    for value in (0.5, 2.0, np.float32(1), -1, float("inf")):
        with pytest.raises(ValueError, match=r"`x` must be an integer, 0 or more\. Received: x="):
            check_number("x", value, 0, whole=True)


def test_integers_of_numpy_become_those_of_python():
    """As which they can be written to JSON, and pass where Keras asks for an `int`."""
    assert type(check_positive_integer("n", np.int64(3))) is int
    assert check_positive_integer("n", None, optional=True) is None
    assert {type(value) for value in check_positive_integers("n", (np.int32(3), 4))} == {int}


def test_check_positive_integers():
    assert check_positive_integers("filters", [6, np.int64(16)]) == (6, 16)
    assert check_positive_integers("filters", (6,)) == (6,)
    assert check_positive_integers("kernel_size", (3, 5), length=2) == (3, 5)
    for value in ((), 6, (6, 0), (6, 1.0), (True, 2), ("6",), None, "66"):
        with pytest.raises(
            ValueError, match="`filters` must be a tuple of one or more positive integers. Received: fil"
        ):
            check_positive_integers("filters", value)
    for value in ((3,), (3, 5, 7), 3):
        with pytest.raises(ValueError, match="`kernel_size` must be 2 positive integers"):
            check_positive_integers("kernel_size", value, length=2)
