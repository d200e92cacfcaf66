"""Ids that count up from 0 tell where in the text a place lies; what is drawn is held against binomial bounds.

Every bound is five standard deviations wide. The draws are functions of the seed, so a test passes always or never.
"""

import hashlib
import sys

import keras
import numpy as np
import pytest

from keras_lt.objectives import masked
from testing import fresh_process

MASK, SIZE = 7, 11  # an id in the middle of the vocabulary


def to_list(dataset):
    return [tuple(np.asarray(part) for part in batch) for batch in dataset]


def joined(dataset):
    return tuple(np.concatenate(parts) for parts in zip(*to_list(dataset), strict=True))


def text(num_ids, seed=0):
    ids = np.random.default_rng(seed).integers(0, SIZE - 1, num_ids)
    return ids + (ids >= MASK)


def assert_share(wanted, hits, cases):
    assert abs(hits - wanted * cases) < 5 * np.sqrt(cases * wanted * (1 - wanted)), (hits / cases, wanted)


@pytest.mark.parametrize(("num_ids", "length", "batch_size", "stride"), [(101, 7, 5, 1), (60, 13, 4, 3), (9, 9, 2, 1)])
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_pass_is_every_window_once(kind, num_ids, length, batch_size, stride, shuffle):
    offsets = list(range(0, num_ids - length + 1, stride))
    dataset = masked(np.arange(num_ids), length, batch_size, 400, 500, 0.3, stride=stride, shuffle=shuffle, seed=2)
    batches = to_list(dataset)
    assert len(dataset) == len(batches) == -(-len(offsets) // batch_size)
    x, y, weight = joined(dataset)
    assert (x.dtype, y.dtype, weight.dtype) == ("int32", "int32", "float32")
    found = y[:, 0].tolist()
    assert (sorted(found) if shuffle else found) == offsets
    assert y.tolist() == [list(range(start, start + length)) for start in found]
    assert set(np.unique(weight)) <= {0.0, 1.0}
    np.testing.assert_array_equal(x[weight == 0], y[weight == 0])
    assert ((x >= 0) & (x < 500)).all()


def test_shares_are_those_of_bert(no_tensorflow):
    ids = text(30_000)
    x, y, weight = joined(masked(ids, 20, 512, MASK, SIZE, seed=1))
    chosen = weight == 1
    assert_share(0.15, chosen.sum(), chosen.size)
    for place in range(20):
        assert_share(0.15, chosen[:, place].sum(), len(chosen))
    shown, right = x[chosen], y[chosen]
    assert_share(0.8, (shown == MASK).sum(), shown.size)
    assert_share(0.1 + 0.1 / (SIZE - 1), (shown == right).sum(), shown.size)
    for other in set(range(SIZE)) - {MASK}:
        assert_share(0.1 / (SIZE - 1), ((shown == other) & (right != other)).sum(), (right != other).sum())


def test_a_mask_rate_of_1_chooses_all(no_tensorflow):
    _, _, weight = joined(masked(text(300), 20, 64, MASK, SIZE, mask_rate=1, seed=1))
    assert weight.min() == 1


def test_draws_are_independent(no_tensorflow):
    """Of places, windows, the passes, training and validation, the choice and what becomes of it."""
    length, ids = 16, text(8015)
    datasets = [masked(ids, length, 8000, MASK, SIZE, 0.5, shuffle=False, seed=seed) for seed in (1, 2)]
    draws = [joined(dataset) for dataset in (datasets[0], datasets[0], datasets[1])]
    one, other, reseeded = (weight for _, _, weight in draws)
    split = masked(text(16000), length, 8000, MASK, SIZE, 0.5, None, length, 0.5, shuffle=False, seed=1)
    trained, held_out = (joined(dataset)[2] for dataset in split)

    def correlation(first, second):
        return abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) * np.sqrt(first.size)

    assert correlation(one, other) < 5
    assert correlation(one, reseeded) < 5
    assert correlation(trained, held_out) < 5
    for lag in (1, 2, 7):
        assert correlation(one[:, lag:], one[:, :-lag]) < 5
        assert correlation(one[lag:], one[:-lag]) < 5
        assert correlation(one[lag:, :-lag], one[:-lag, lag:]) < 5  # one and the same id of the text
        hidden = (draws[0][0] == MASK).astype(float)[:, lag:]
        both = (one[:, lag:] == 1) & (one[:, :-lag] == 1)
        assert correlation(hidden[both], (draws[0][0] == MASK)[:, :-lag][both].astype(float)) < 5
    per_window = one.sum(axis=1)
    assert abs(per_window.var() / (length / 4) - 1) < 5 * np.sqrt(2 / len(per_window))


def test_words_are_chosen_as_a_whole(kind):
    random = np.random.default_rng(3)
    lengths = random.integers(1, 5, 3000)
    word_ids = np.repeat(random.permutation(3000) % 7, lengths)  # the same numbers again and again
    words = np.cumsum(np.diff(word_ids, prepend=-1) != 0)
    ids = np.arange(len(word_ids))
    dataset = masked(ids, 30, 64, len(ids), len(ids) + 1, 0.3, word_ids, stride=30, shuffle=False, seed=4)
    x, y, weight = joined(dataset)
    chosen = num_words = pairs = hidden_pairs = mixed = 0
    for row in range(len(y)):
        for word in np.unique(words[y[row]]):
            inside = words[y[row]] == word
            assert len(set(weight[row][inside])) == 1
            num_words += 1
            if weight[row][inside].all():
                chosen += 1
                hidden = x[row][inside] == len(ids)
                if len(hidden) == 2:
                    pairs, hidden_pairs, mixed = pairs + 1, hidden_pairs + hidden.all(), mixed + (hidden.sum() == 1)
    assert num_words > 2000
    assert_share(0.3, chosen, num_words)
    assert_share(0.64, hidden_pairs, pairs)  # each token draws for itself
    assert_share(0.32, mixed, pairs)


def test_every_pass_chooses_anew_and_the_seed_decides(kind):
    ids = np.arange(200)

    def dataset(seed=3):
        return masked(ids, 16, 9, 200, 201, shuffle=False, validation_split=0.2, seed=seed)

    train, validation = dataset()
    passes = [np.concatenate(joined(train), axis=1) for _ in range(3)]
    assert all((one != other).any() for one, other in [passes[:2], passes[1:], passes[::2]])
    steps = to_list(dataset()[0].repeat().skip(20).take(21))  # of 17 batches a pass
    again, _ = dataset()
    expected = [batch for _ in range(3) for batch in to_list(again)][20:41]
    for step, batch in zip(steps, expected, strict=True):
        for one, other in zip(step, batch, strict=True):
            np.testing.assert_array_equal(one, other)
    held_out = [np.concatenate(joined(validation), axis=1) for _ in range(2)]
    np.testing.assert_array_equal(*held_out)
    for train, validation in (dataset(4), dataset(3 + 2**31)):
        assert (np.concatenate(joined(train), axis=1) != passes[0]).any()
        assert (np.concatenate(joined(validation), axis=1) != held_out[0]).any()


def test_without_tensorflow_and_in_another_process_the_batches_are_the_same(monkeypatch):
    pytest.importorskip("tensorflow")
    code = """
        import hashlib, sys
        import numpy as np

        from keras_lt.objectives import masked

        sys.modules["tensorflow"] = None
        digest = hashlib.sha256()
        arguments = np.arange(700) % 90, 12, 8, 95, 99, 0.2, np.arange(700) // 3
        for dataset in masked(*arguments, validation_split=0.3, seed=-5):
            for _ in range(2):
                for batch in dataset:
                    for part in batch:
                        digest.update(np.asarray(part).tobytes())
        print(digest.hexdigest())
    """
    digests = [fresh_process(code).split()[-1]]
    arguments = np.arange(700) % 90, 12, 8, 95, 99, 0.2, np.arange(700) // 3
    for absent in (False, True):
        with monkeypatch.context() as patch:
            if absent:
                patch.setitem(sys.modules, "tensorflow", None)
            datasets = masked(*arguments, validation_split=0.3, seed=-5)
        digest = hashlib.sha256()
        for dataset in datasets:
            for batch in [*dataset, *dataset]:
                for part in batch:
                    digest.update(np.asarray(part).tobytes())
        digests.append(digest.hexdigest())
    assert len(set(digests)) == 1


@pytest.mark.parametrize(("num_ids", "length", "batch_size"), [(103, 9, 2), (90, 9, 3), (100, 30, 1), (61, 30, 4)])
def test_validation_could_choose_every_held_out_id_once(kind, num_ids, length, batch_size):
    split = num_ids // 2
    train, validation = masked(
        np.arange(num_ids), length, batch_size, 400, 500, mask_rate=1.0, validation_split=0.5, seed=1
    )
    x, y, weight = joined(validation)
    assert len(y) == -(-(num_ids - split) // length)
    assert len(validation) == -(-len(y) // batch_size)
    assert y[weight == 1].tolist() == list(range(split, num_ids))
    for row in y:
        assert row.tolist() == list(range(row[0], row[0] + length))
    assert y.min() == split
    np.testing.assert_array_equal(x[weight == 0], y[weight == 0])
    assert joined(train)[1].max() == split - 1


def test_words_may_be_given_with_a_split(no_tensorflow):
    ids, word_ids = np.arange(100), np.arange(100) // 2
    _, validation = masked(ids, 10, 5, 100, 101, 0.5, word_ids, validation_split=0.5, seed=1)
    _, y, weight = joined(validation)
    np.testing.assert_array_equal(weight[:, ::2], weight[:, 1::2])
    assert 0 < weight.mean() < 1
    assert y.ravel().tolist() == list(range(50, 100))


def test_without_seed_the_global_one_governs(no_tensorflow):
    weights = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        weights.append(joined(masked(text(300), 20, 64, MASK, SIZE, shuffle=False))[2])
    np.testing.assert_array_equal(weights[0], weights[1])
    assert (weights[0] != weights[2]).any()


def test_tf_data_has_fixed_types():
    tf = pytest.importorskip("tensorflow")
    for dataset in masked(text(300), 20, 64, MASK, SIZE, validation_split=0.2, seed=1):
        ids = tf.TensorSpec((None, 20), "int32")
        assert dataset.element_spec == (ids, ids, tf.TensorSpec((None, 20), "float32"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": [0] * 4}, "sequence_length=5 ids. Received: 4 for training and 0 held out"),
        ({"validation_split": 0.1}, r"Received: 18 for training and 2 held out \(validation_split=0.1\)"),
        ({"token_ids": [0.5] * 20}, "`token_ids` must be integers. Received: float64"),
        ({"token_ids": [[0] * 20]}, r"`token_ids` must have rank 1. Received: shape \(1, 20\)"),
        ({"token_ids": [0] * 19 + [11]}, r"vocabulary_size=11\). Received: 11 at \[19\]"),
        ({"token_ids": [0] * 19 + [10]}, r"`token_ids` must not hold the special ids \[10\]. Received: 10 at \[19\]"),
        ({"mask_id": 11}, r"`mask_id` must be whole numbers from 0 to 10 \(vocabulary_size=11\). Received: 11"),
        ({"mask_id": -1}, "`mask_id` must be whole numbers"),
        ({"mask_id": 1.5}, "`mask_id` must be integers. Received: float64"),
        ({"mask_id": None}, "`mask_id` must be integers"),
        ({"mask_id": True}, "`mask_id` must be integers. Received: True"),
        ({"vocabulary_size": 1}, "`vocabulary_size` must be 2 or more"),
        ({"vocabulary_size": None}, "`vocabulary_size` must be a positive integer.*None"),
        ({"mask_rate": 0}, "`mask_rate` must be a number above 0, up to 1. Received: mask_rate=0"),
        ({"mask_rate": 1.1}, "`mask_rate`.*1.1"),
        ({"mask_rate": float("nan")}, "`mask_rate`.*nan"),
        ({"mask_rate": "some"}, "`mask_rate`.*'some'"),
        ({"word_ids": [0] * 19}, "`word_ids` must be as many as the ids. Received: 19 for 20 ids"),
        ({"word_ids": [0.5] * 20}, "`word_ids` must be integers. Received: float64"),
        ({"sequence_length": 0}, "`sequence_length` must be a positive integer.*0"),
        ({"batch_size": 2.5}, "`batch_size` must be a positive integer.*2.5"),
        ({"stride": 0}, "`stride` must be a positive integer.*0"),
        ({"validation_split": 1.0}, "`validation_split`.*1.0"),
        ({"seed": "one"}, "`seed` must be an integer or None.*'one'"),
    ],
)
def test_wrong_arguments(no_tensorflow, changes, message):
    arguments = {"token_ids": [0] * 20, "sequence_length": 5, "batch_size": 2, "mask_id": 10, "vocabulary_size": 11}
    with pytest.raises(ValueError, match=message):
        masked(**{**arguments, **changes})
