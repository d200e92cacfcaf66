"""Bayes' rule in exact fractions, and in float64 with the logarithms of the very float32 numbers that go in."""

import itertools
from fractions import Fraction

import keras
import numpy as np
import pytest

from keras_lt.ops import bayes_posterior
from testing import BACKEND, MODES, assert_close, gradient, run


def formula(log_likelihood, log_prior):
    joint = np.asarray(log_likelihood, "float64") + np.asarray(log_prior, "float64")
    with np.errstate(invalid="ignore"):
        joint = np.exp(joint - joint.max(axis=-1, keepdims=True))
        return joint / joint.sum(axis=-1, keepdims=True)


def test_a_test_for_a_rare_illness():
    """Of 1,000 people 8 are ill; of those the test finds 9 in 10, and of the healthy it suspects 7 in 100."""
    ill = Fraction(9, 10) * Fraction(8, 1000)
    healthy = Fraction(7, 100) * Fraction(992, 1000)
    posterior = bayes_posterior(np.log([0.9, 0.07]), np.log([8, 992]))
    assert_close(posterior, np.array([ill, healthy], "float64") / float(ill + healthy))


def test_joint_distribution_by_counting():
    """Every likelihood and prior out of twelfths, against the table of all cases, counted."""
    table = np.array([[1, 2, 9], [4, 4, 4], [10, 1, 1], [3, 7, 2]])  # hypothesis, evidence: in twelfths
    for prior in itertools.permutations((1, 2, 3, 6)):
        cases = table * np.array(prior)[:, None]
        for evidence in range(3):
            expected = [Fraction(int(count), int(cases[:, evidence].sum())) for count in cases[:, evidence]]
            posterior = bayes_posterior(np.log(table[:, evidence] / 12), np.log(np.array(prior) / 12))
            assert_close(posterior, np.array(expected, "float64"))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("likelihood", "prior"), [((5,), (5,)), ((7, 5), (5,)), ((2, 7, 5), (7, 5)), ((7, 5), (2, 1, 5)), ((3, 1), (1,))]
)
def test_shapes(mode, likelihood, prior):
    random = np.random.default_rng(0)
    arguments = [(3 * random.normal(size=shape)).astype("float32") for shape in (likelihood, prior)]
    assert_close(run(mode, bayes_posterior, *arguments), formula(*arguments))


@pytest.mark.parametrize("mode", MODES)
def test_tiny_likelihoods_are_as_exact_as_large_ones(mode):
    """Beside 1e5 a float32 has steps of 1/128, which no difference of the prior may be lost in."""
    log_likelihood = np.float32([[-1e5, -1e5 - 1, -1e5 + 0.5], [-3e7, -3e7, -3e7 + 2], [0, -1e5, -0.25]])
    log_prior = np.log(np.float32([0.3, 0.6, 0.1]))
    assert_close(run(mode, bayes_posterior, log_likelihood, log_prior), formula(log_likelihood, log_prior))
    assert_close(run(mode, bayes_posterior, log_likelihood, log_prior - 64), formula(log_likelihood, log_prior - 64))


@pytest.mark.parametrize("mode", MODES)
def test_impossible_hypotheses(mode):
    never = -np.inf
    log_likelihood = np.float32([[-1, never, -2], [never, -1e5, -1e5 + 1], [never] * 3, [0, never, never]])
    log_prior = np.float32([never, -0.3, -1.7])
    expected = np.array([[0, 0, 1], [0, 0, 0], [np.nan] * 3, [np.nan] * 3])
    odds = np.exp(np.array([-0.3, 1 - 1.7]))
    expected[1, 1:] = odds / odds.sum()
    assert_close(run(mode, bayes_posterior, log_likelihood, log_prior), expected)
    prior = np.exp(log_prior[1:].astype("float64"))
    expected = np.array([0, *(prior / prior.sum())])
    assert_close(run(mode, bayes_posterior, np.float32([5, 0, 0]), log_prior), expected)
    assert np.isnan(run(mode, bayes_posterior, np.float32([0, 0]), np.float32([never, never]))).all()
    likely = np.float32([1e6, -0.5, 0.25])  # beside the likelihood of what cannot be, nothing is lost
    assert_close(run(mode, bayes_posterior, likely, log_prior)[1:], formula(likely[1:], log_prior[1:]))


@pytest.mark.parametrize("mode", MODES)
def test_gradient_is_that_of_softmax(mode):
    """d P_i / d log-likelihood_j = P_i (1 if i = j - P_j), with an impossible hypothesis among them."""
    log_likelihood, log_prior = np.float32([-7, -8, -np.inf, -7.5]), np.float32([0.5, 0.25, 1, 2])
    posterior = formula(log_likelihood, log_prior)
    pick = np.float32([1, 0, 0, 0])

    def picked(log_likelihood, log_prior):
        return keras.ops.multiply(pick, bayes_posterior(log_likelihood, log_prior))

    expected = posterior[0] * (pick - posterior)
    assert_close(gradient(mode, picked, log_likelihood, log_prior), expected)
    assert_close(
        gradient(mode, lambda prior, likelihood: picked(likelihood, prior), log_prior, log_likelihood), expected
    )


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int32", "float64"])
def test_computed_in_float32_at_least(dtype):
    if dtype == "float64" and BACKEND == "jax":
        pytest.skip("JAX has no float64 unless it is switched on")
    values = keras.ops.convert_to_tensor(np.float32([-300, -301, -304]))
    posterior = bayes_posterior(keras.ops.cast(values, dtype), keras.ops.cast(values, dtype))
    assert keras.backend.standardize_dtype(posterior.dtype) == ("float64" if dtype == "float64" else "float32")
    exact = keras.ops.convert_to_numpy(keras.ops.cast(keras.ops.cast(values, dtype), "float32"))
    assert_close(posterior, formula(exact, exact))


def test_no_evidence():
    assert bayes_posterior(np.zeros((0, 3), "float32"), np.zeros(3, "float32")).shape == (0, 3)


def test_symbolic_inputs():
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, bayes_posterior(inputs, np.zeros(4, "float32")))
    assert model.output_shape == (None, None, 4)
    values = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    assert_close(model(values), formula(values, 0))


@pytest.mark.parametrize(
    ("likelihood", "prior"), [((5,), (4,)), ((3, 5), (2, 5)), ((5,), ()), ((), (5,)), ((5,), (1,)), ((2, 0), (0,))]
)
def test_shapes_that_do_not_fit(likelihood, prior):
    with pytest.raises(ValueError, match=r"shape \(..., K\).*Received: log_likelihood.shape=\(.*log_prior.shape=\("):
        bayes_posterior(np.zeros(likelihood, "float32"), np.zeros(prior, "float32"))
