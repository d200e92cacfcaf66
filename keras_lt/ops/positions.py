import numpy as np
from keras import ops


def sinusoidal_positions(length, hidden_dim):
    """Sine and cosine, interleaved, of each position at `hidden_dim / 2` wavelengths.

    With `p` and `i` counted from 0: `P[p, i] = sin(p / 10000^(i/D))` for even `i`, `cos(p / 10000^((i-1)/D))` for odd.

    Args:
        length: Integer. Number of positions.
        hidden_dim: Integer. Width `D` of an encoding.

    Returns:
        A NumPy array of shape `(length, D)` in float32, computed in float64 and rounded once.

    Source: S1, `P` (which counts `p` and `i` from 1); S2, `PE`.
    """
    index = np.arange(hidden_dim)
    angles = np.arange(length)[:, None] / 10000.0 ** (2 * (index // 2) / hidden_dim)
    return np.where(index % 2 == 0, np.sin(angles), np.cos(angles)).astype("float32")


def rotary_embedding(inputs, positions, base=10000.0):
    """Rotate the two halves of each head against each other by an angle that grows with the position.

    The product of a query and a key so rotated depends on the distance of their positions only. Angles are computed
    in float32 whatever the dtype of the input: in bfloat16 position 257 would already be position 256.

    Args:
        inputs: Tensor of shape `(B, N, T, H)`, `H` even.
        positions: Integer tensor of shape `(T,)` or `(B, T)`.
        base: Float. Wavelength, in units of 2 pi positions, that the slowest pair approaches. Defaults to `10000.0`.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    Raises:
        ValueError: If `H` is odd.

    References:
    - [Su et al., 2021](https://arxiv.org/abs/2104.09864)
    """
    inputs = ops.convert_to_tensor(inputs)
    head_dim = inputs.shape[-1]
    if head_dim % 2:
        raise ValueError(f"Rotary positions need heads of an even size. Received: inputs.shape={tuple(inputs.shape)}")
    frequencies = base ** (-np.arange(0, head_dim, 2) / head_dim)
    angles = ops.multiply(
        ops.expand_dims(ops.cast(positions, "float32"), -1), frequencies.astype("float32")
    )  # (B, T, H/2)
    angles = ops.expand_dims(angles, axis=-3)  # (B, 1, T, H/2)
    cosine, sine = ops.cos(angles), ops.sin(angles)
    first, second = ops.split(ops.cast(inputs, "float32"), 2, axis=-1)
    rotated = ops.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
    return ops.cast(rotated, inputs.dtype)
