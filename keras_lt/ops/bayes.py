import keras
from keras import ops


def bayes_posterior(log_likelihood, log_prior):
    """How probable each of `K` hypotheses is after the evidence: Bayes' rule.

    `P(Y | X) = P(X | Y) P(Y) / P(X)`, where `P(X)` is the sum of `P(X | Y) P(Y)` over all hypotheses `Y`

    Computed from logarithms, in float32 at least and float64 where that comes in, so that likelihoods far below the
    smallest number are no harm: only their differences count. Minus infinity is probability 0. Where no hypothesis
    can have produced the evidence, each having likelihood or prior 0, the answer is NaN: there is none.

    Args:
        log_likelihood: Tensor of shape `(..., K)`: `log P(X | Y)` for each hypothesis, in nats.
        log_prior: Tensor of shape `(K,)`, or of one that broadcasts to the other: `log P(Y)`. It need not be
            normalised: `log` of how often each hypothesis was right before will do.

    Returns:
        The posterior probabilities, of the shape that the two broadcast to; they sum to 1 over the last axis.

    Raises:
        ValueError: If the shapes do not fit each other, or there is no hypothesis.

    Example:

    >>> likelihood, prior = np.array([0.2, 0.6]), np.array([0.75, 0.25])
    >>> posterior = keras_lt.ops.bayes_posterior(np.log(likelihood), np.log(prior))
    >>> [round(float(probability), 6) for probability in posterior]
    [0.5, 0.5]

    Source: S2, Bayes' rule: prior, likelihood, posterior.
    """
    log_likelihood, log_prior = ops.convert_to_tensor(log_likelihood), ops.convert_to_tensor(log_prior)
    _check_shapes(tuple(log_likelihood.shape), tuple(log_prior.shape))
    dtypes = [keras.backend.standardize_dtype(tensor.dtype) for tensor in (log_likelihood, log_prior)]
    dtype = "float64" if "float64" in dtypes else "float32"
    log_likelihood, log_prior = ops.cast(log_likelihood, dtype), ops.cast(log_prior, dtype)
    # Each is brought near 0 before the sum, which would otherwise round a prior away beside a large likelihood.
    is_possible = ops.greater(log_prior, -float("inf"))
    log_likelihood = log_likelihood - _largest(ops.where(is_possible, log_likelihood, -float("inf")))
    log_joint = log_likelihood + (log_prior - _largest(log_prior))
    joint = ops.exp(log_joint - _largest(log_joint))
    return joint / ops.sum(joint, axis=-1, keepdims=True)


def _largest(values):
    return ops.stop_gradient(ops.max(values, axis=-1, keepdims=True, initial=-float("inf")))


def _check_shapes(likelihood, prior):
    pairs = zip(reversed(likelihood), reversed(prior), strict=False)
    fit = all(one == other or 1 in (one, other) or None in (one, other) for one, other in pairs)
    if not likelihood or not prior or likelihood[-1] != prior[-1] or likelihood[-1] == 0 or not fit:
        raise ValueError(
            "`log_likelihood` must have the shape (..., K), and `log_prior` (K,) or one that broadcasts to it, with "
            f"one hypothesis or more. Received: log_likelihood.shape={likelihood}, log_prior.shape={prior}"
        )
