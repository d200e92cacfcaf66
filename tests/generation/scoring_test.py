"""Scores against NumPy's log-softmax: of a model of tables, and of a LittleTransformer's plain call."""

import keras
import numpy as np
import pytest

from generation_testing import TableModel, log_softmax
from keras_lt.generation import scoring
from keras_lt.models import LittleTransformer
from testing import MODES, assert_close, run

V, LIMIT = 11, 7
# Two lengths of pieces, up to 16 and up to 20 tokens; the first two have nothing to predict.
ROWS = [[], [4], [3, 9], [10, 0, 0, 5, 2, 2, 7], [1, 8, 0, 3, 3, 10, 6, 2, 5, 4, 9, 1, 7], list(range(11)) + [5] * 8]


def random_rows(*lengths, low=0):
    generator = np.random.default_rng(3)
    return [generator.integers(low, V, length).astype("int32") for length in lengths]


def expected_score(model, rows):
    """The sum of each token's log-probability after those before it, the last `max_sequence_length` of them."""
    sums = [sum(log_softmax(model.next_logits(row[:t]))[row[t]] for t in range(1, len(row))) for row in rows]
    return {"log_likelihood": np.array(sums, "float64"), "token_counts": np.array([max(0, len(r) - 1) for r in rows])}


def check(scores, expected, tolerance=1e-6):
    assert set(scores) == {"log_likelihood", "token_counts"}
    assert scores["log_likelihood"].dtype == "float32" and scores["token_counts"].dtype == "int32"
    assert_close(scores, expected, tolerance)


@pytest.fixture(scope="module")
def models():
    """By their limit; every test finds the compiled functions of those before it."""
    return {limit: TableModel(V, max_sequence_length=limit) for limit in (None, LIMIT)}


@pytest.fixture(scope="module")
def transformer():
    keras.utils.set_random_seed(1)
    model = LittleTransformer(
        V, LIMIT, num_layers=1, num_heads=2, hidden_dim=6, mask_zero=True, embeddings_initializer="random_normal"
    )
    model.head.bias.assign(np.random.default_rng(2).normal(size=V))
    return model


@pytest.mark.parametrize("limit", [None, LIMIT])
def test_equals_numpy(models, limit):
    """Past the limit each token is given the last ones, as many as the model looks at."""
    check(models[limit].score(ROWS), expected_score(models[limit], ROWS))


@pytest.mark.parametrize("limit", [None, LIMIT])
def test_order_and_company_change_nothing(models, limit):
    model, rows = models[limit], ROWS[2:]
    together = model.score(rows)
    turned = model.score(rows[::-1])
    alone = [model.score([row]) for row in rows]
    for name, values in together.items():
        assert_close(turned[name][::-1], values)
        assert_close(np.concatenate([score[name] for score in alone]), values)


@pytest.mark.parametrize("limit", [None, LIMIT])
@pytest.mark.parametrize("rows", [1, 3])
def test_batch_size_changes_nothing(models, limit, rows, monkeypatch):
    monkeypatch.setattr(scoring, "_ROWS", rows)
    check(models[limit].score(ROWS), expected_score(models[limit], ROWS))


def test_large_vocabularies_take_fewer_rows(models, monkeypatch):
    monkeypatch.setattr(scoring, "_LOGITS", 16 * V * 2)
    check(models[None].score(ROWS), expected_score(models[None], ROWS))


@pytest.mark.parametrize("limit", [None, LIMIT])
@pytest.mark.parametrize("chunk", [1, 5])
def test_longer_than_a_chunk(models, limit, chunk, monkeypatch):
    """The last chunk is a shorter one, and some rows end before it."""
    monkeypatch.setattr(scoring, "_CHUNK", chunk)
    check(models[limit].score(ROWS), expected_score(models[limit], ROWS))


def test_kinds_of_sequences(models):
    model, rows = models[None], [ROWS[3], ROWS[2], ROWS[1]]
    padded = np.full((3, 7), 6)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    lengths = [len(row) for row in rows]
    expected = expected_score(model, rows)
    to_tensor = keras.ops.convert_to_tensor
    check(model.score([np.array(row, "uint8") for row in rows]), expected)
    check(model.score([to_tensor(row, "int32") for row in rows]), expected)
    check(model.score(padded, lengths=lengths), expected)
    check(model.score(to_tensor(padded, "int32"), lengths=to_tensor(lengths, "int32")), expected)
    check(model.score(padded), expected_score(model, padded.tolist()))
    check(model.score(padded, lengths=[0, 1, 0]), {"log_likelihood": np.zeros(3), "token_counts": np.zeros(3, int)})


@pytest.mark.parametrize("nothing", [[], np.zeros((0, 5), "int32")], ids=["list", "array"])
def test_no_sequences(models, nothing):
    check(models[None].score(nothing), {"log_likelihood": np.zeros(0), "token_counts": np.zeros(0, int)})


def test_padding_is_not_counted(models, monkeypatch):
    model = models[None]
    monkeypatch.setattr(model, "mask_zero", True)
    rows = [[3, 9, 5, 2, 7], [8, 1, 4], [10]]
    padded = np.array([[*row, *[0] * (7 - len(row))] for row in rows])
    for token_ids in (padded, padded.tolist()):
        check(model.score(token_ids), expected_score(model, rows))


def test_long_sequences_lose_no_precision(models):
    """Of more than three chunks, each summed up in float32, and their sums in float64."""
    rows = random_rows(1709)
    model = TableModel(V)
    model.next_logits = lambda history: TableModel.next_logits(model, list(history)[-2:])
    for table in (1, 2):
        model.weights[table].assign(np.zeros(model.weights[table].shape))
        model.tables[table][:] = 0
    check(model.score(rows), expected_score(model, rows))


def test_other_weights_are_seen(models):
    model = models[None]
    for seed in (4, 0):
        model.draw(seed)
        check(model.score(ROWS), expected_score(model, ROWS))


def transformer_score(model, rows):
    """By the plain call, of every window that predicts a token, filled up with padding, which changes nothing."""
    windows = [
        (number, row[max(0, t - LIMIT) : t], row[t]) for number, row in enumerate(rows) for t in range(1, len(row))
    ]
    token_ids = np.zeros((len(windows), LIMIT), "int32")
    for place, (_, window, _) in zip(token_ids, windows, strict=True):
        place[: len(window)] = window
    logits = run(MODES[-1], model, token_ids)
    sums = np.zeros(len(rows))
    for (number, window, token), values in zip(windows, logits, strict=True):
        sums[number] += log_softmax(values[len(window) - 1])[token]
    return {"log_likelihood": sums, "token_counts": np.array([max(0, len(row) - 1) for row in rows])}


def test_little_transformer(transformer):
    """Float32 attention in another order of sums: 1e-5, as for every cache."""
    rows = random_rows(5, 1, 7, 8, 13, low=1)
    right = [np.pad(row, (0, 2)) for row in rows[:3]]
    # Before a sequence padding takes room in what the model looks at: those that fit with it.
    left = [np.pad(row, (2, 0)) for row in rows[:2]]
    expected = transformer_score(transformer, [*rows, *rows[:3], *rows[:2]])
    check(transformer.score([*rows, *right, *left]), expected, 1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"token_ids": [[1, 2], [3, V]]}, rf"token_ids\[1\].*Received: {V} at \[1\]"),
        ({"token_ids": [[1, -1]]}, "Received: -1"),
        ({"token_ids": [[1, 0.5]]}, "Received: 0.5"),
        ({"token_ids": [1, 2]}, "entry of rank 0"),
        ({"token_ids": np.array([1, 2])}, r"shape \(2,\)"),
        ({"token_ids": "text"}, "Received: str"),
        ({"lengths": [1, 4]}, r"lengths\[1\].*Received: 4"),
        ({"lengths": [1]}, r"of shape \(1,\)"),
    ],
    ids=str,
)
def test_wrong_arguments(models, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        models[None].score(**{"token_ids": [[1, 2], [3, 4, 5]], **arguments})
