"""Pseudo-random numbers as functions of a seed, the pass and what is drawn: nothing is stored, any number at any time.

Numbers are of 31 bits and held in int64: every product below fits, so NumPy and TensorFlow agree to the bit.
"""

import math
import operator

import numpy as np

NUMBER_LIMIT = 2**31

_MASK = NUMBER_LIMIT - 1
_NUM_ROUNDS = 4


def resolve_seed(seed):
    """The seed as Python's integer; for `None` one from NumPy's global generator.

    Args:
        seed: Integer or `None`.

    Returns:
        An integer.

    Raises:
        ValueError: If it is something else.
    """
    if seed is None:
        return int(np.random.randint(_MASK))
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise ValueError(f"`seed` must be an integer or None. Received: seed={seed!r}")
    return operator.index(seed)


def pass_key(seed, number):
    """What all that is random in a pass is derived from.

    Args:
        seed: Integer.
        number: Number of the pass, an integer from 0 below 2**31, or such a tensor of rank 0.

    Returns:
        A number from 0 below 2**31, Python's or a tensor as `number` is.
    """
    state = _mix(_mix((seed & _MASK) ^ 1_572_067_139) ^ ((seed >> 31) & _MASK))
    return _mix(number ^ state)


def draw(key, purpose, *numbers):
    """Draws a uniform number from 0 below 2**31 for each combination of what it is drawn for.

    Args:
        key: The pass's key.
        purpose: Integer above the number of rounds of the permutation (4): another one draws independently.
        *numbers: Integers or tensors of integers from 0 below 2**31, whose shapes broadcast.

    Returns:
        An int64 tensor of the shape that `numbers` broadcast to.
    """
    key = _mix(key ^ purpose)
    result = key
    for number in numbers:
        result = _mix(result ^ _mix(number ^ key))
    return result


def permute(numbers, count, key, arrays):
    """Maps 0 ... count - 1 one to one onto itself: a Feistel network on the cells of a nearly square grid.

    Each round moves a cell along one axis by a distance that hangs on the other axis only, so it can be undone. Of the
    shapes tried, the one with the fewest cells too many is taken; who lands on such a cell moves on from there.

    Args:
        numbers: Int64 tensor of numbers from 0 below `count`.
        count: Positive integer.
        key: The pass's key.
        arrays: The array functions of NumPy or TensorFlow.

    Returns:
        An int64 tensor of the shape of `numbers`.
    """
    keys = [_mix(key ^ number) for number in range(1, _NUM_ROUNDS + 1)]
    root = math.isqrt(count - 1) + 1
    num_rows = min(range(root, root + root // 8 + 1), key=lambda num_rows: -count % num_rows)
    num_columns = -(-count // num_rows)

    def step(numbers, again):
        row, column = numbers // num_columns, numbers % num_columns
        for row_key, column_key in zip(keys[::2], keys[1::2], strict=True):
            row = (row + _mix(column ^ row_key)) % num_rows
            column = (column + _mix(row ^ column_key)) % num_columns
        numbers = arrays.where(again, row * num_columns + column, numbers)
        return numbers, numbers >= count

    return arrays.do_while_any(step, numbers)


def _mix(number):
    """Hashes numbers below 2**31 one to one: each line can be undone, the multipliers being odd.

    They are 2**31 times the fractions of the golden ratio and of the square root of 2, whose bits have no pattern.
    """
    number = number ^ (number // 2**16)
    number = (number * 1_327_217_885) & _MASK
    number = number ^ (number // 2**15)
    number = (number * 889_516_853) & _MASK
    return number ^ (number // 2**16)
