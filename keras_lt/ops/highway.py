def highway(inputs, transformed, gate):
    """Let a gate choose between what a layer made of its inputs and the inputs themselves.

    `H(x) = F(x) g(x) + x (1 - g(x))`

    Args:
        inputs: Tensor, `x`.
        transformed: Tensor of the same shape, `F(x)`.
        gate: Tensor of the same shape, `g(x)`, from 0, which carries the inputs on, to 1.

    Returns:
        A tensor of the same shape.

    Source: S2, highway networks.
    """
    return transformed * gate + inputs * (1 - gate)
