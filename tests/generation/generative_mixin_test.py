"""Generation where others would not look for it: in a callback, in a tf.function, with samplers of one's own."""

import keras
import numpy as np
import pytest
from keras import ops

from generation_testing import TableModel, greedy
from keras_lt.generation import BeamSearch, Sampler
from keras_lt.generation.decoder import _MOST_FUNCTIONS, Decoder
from keras_lt.generation.generative_mixin import GenerativeMixin
from keras_lt.models import LittleTransformer
from testing import BACKEND, assert_close, needs_tensorflow, to_numpy

V, PROMPT = 7, [3, 1, 4]


@pytest.fixture
def model(without_xla):
    return TableModel(V)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("sampler", ["greedy", Sampler(), BeamSearch(2)])
def test_logits_that_are_no_numbers(model, sampler, value):
    model.weights[1].assign(np.full((V, V), value, "float32"))
    with pytest.raises(
        ValueError, match="no next token for row 0 after 3 tokens: the model's logits are NaN or infinite"
    ):
        model.generate([PROMPT], 4, sampler, seed=1)


class Ban(Sampler):
    """Never chooses one token; a class of a user's own, with a setting of its own."""

    def __init__(self, token_id):
        super().__init__(temperature=0.0)
        self.token_id = token_id

    def choose(self, logits, state, active, inputs):
        banned = ops.equal(ops.arange(V), self.token_id)
        return super().choose(ops.where(banned, -float("inf"), logits), state, active, inputs)


def test_samplers_of_a_subclass_do_not_share_a_loop(model):
    chosen = greedy(model, PROMPT, 1)[-1]
    assert model.generate([PROMPT], 1, Ban((chosen + 1) % V))[0][-1] == chosen
    assert model.generate([PROMPT], 1, Ban(chosen))[0][-1] != chosen


@pytest.mark.parametrize("answer", ["float", "bool", "none"])
def test_function_that_gives_no_integers(model, answer):
    answers = {
        "float": lambda logits, history: ops.max(logits, axis=-1),
        "bool": lambda logits, history: ops.max(logits, axis=-1) > 0,
        "none": lambda logits, history: None,
    }
    with pytest.raises(ValueError, match=r"must return an id a row, integers of shape \(B,\)"):
        model.generate([PROMPT], 2, answers[answer])


def test_function_that_cannot_be_hashed(model):
    class Fixed(dict):
        def __call__(self, logits, history):
            return ops.full_like(history.lengths, self["token_id"])

    rows = [model.generate([PROMPT], 2, Fixed(token_id=token_id))[0] for token_id in (5, 2)]
    np.testing.assert_array_equal(rows, [[*PROMPT, 5, 5], [*PROMPT, 2, 2]])


def test_loops_that_are_not_used_are_dropped():
    decoder = Decoder(TableModel(V))
    for key in range(3 * _MOST_FUNCTIONS):
        decoder.compiled("always", lambda x: x)
        decoder.compiled(key, lambda x: x)
    assert len(decoder._functions) == _MOST_FUNCTIONS
    assert "always" in decoder._functions


def test_long_seeds(model):
    seeds = [5, 2**63, 2**64 + 5, 3 * (2**32 + 1)]
    rows = model.generate([PROMPT] * 4, 20, Sampler(2.0), seed=seeds)
    assert len({tuple(row) for row in rows}) == 4
    alone = model.generate([PROMPT], 20, Sampler(2.0), seed=2**63)
    np.testing.assert_array_equal(alone[0], rows[1])


@pytest.mark.parametrize("token_ids", [[[1, [2, 3]]], [[1 + 2j]], [[True, False]]])
def test_ids_of_a_wrong_kind(model, token_ids):
    with pytest.raises((ValueError, TypeError), match="integers|must be flat"):
        model.generate(token_ids, 1)


def test_beams_under_another_default_dtype(model):
    expected = model.generate([PROMPT], 4, BeamSearch(3))
    keras.config.set_floatx("float64")
    try:
        other = TableModel(V)
        np.testing.assert_array_equal(other.generate([PROMPT], 4, BeamSearch(3)), expected)
    finally:
        keras.config.set_floatx("float32")


def test_protocol_on_a_plain_keras_model(without_xla):
    class Repeats(GenerativeMixin, keras.Model):
        vocabulary_size, max_sequence_length = 5, None

        def build_cache(self, batch_size, max_length):
            return ops.zeros((batch_size, 1))

        def call_with_cache(self, token_ids, cache, start_index, lengths=None):
            return 9 * ops.one_hot(token_ids, 5), cache

    model = Repeats()
    np.testing.assert_array_equal(model.generate(np.array([[1, 2]]), 3)[0], [1, 2, 2, 2, 2])
    expected = np.log(np.exp([9.0, 0.0]) / (np.exp(9.0) + 4))
    assert_close(model.score([[2, 2], [2, 3]])["log_likelihood"], expected.astype("float32"), 1e-5)


def test_in_a_callback_during_fit(without_xla):
    """The weights are those of the step before; on JAX, Keras keeps their values elsewhere while it trains."""
    model = LittleTransformer(V, 8, num_layers=1, num_heads=2, hidden_dim=4)
    model.compile(optimizer=keras.optimizers.SGD(0.5), jit_compile=False if BACKEND == "tensorflow" else "auto")
    found = []

    class Score(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            found.append((self.model.score([PROMPT])["log_likelihood"], to_numpy(model(np.array([PROMPT])))))

    ids = np.random.default_rng(0).integers(0, V, (6, 8))
    model.fit(ids, ids, batch_size=2, callbacks=[Score()], verbose=0)
    for log_likelihood, logits in found:
        log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        assert_close(log_likelihood, log_probs[0, [0, 1], PROMPT[1:]].sum(keepdims=True), 1e-5)
    assert len({float(log_likelihood[0]) for log_likelihood, _ in found}) == 3


@needs_tensorflow
def test_in_a_tf_function(model):
    import tensorflow as tf

    @tf.function
    def compiled():
        return model.generate([PROMPT], 2)

    with pytest.raises(RuntimeError, match="cannot be called in a tf.function"):
        compiled()
