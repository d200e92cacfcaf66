"""The oracle is a loop over the text. Ids that count up from 0 tell where in the text a window or a prediction lies."""

import importlib
import sys

import keras
import numpy as np
import pytest

from keras_lt.objectives import causal_windows

MODULE = importlib.import_module("keras_lt.objectives.batches")


def to_list(dataset):
    return [tuple(np.asarray(part) for part in batch) for batch in dataset]


def assert_same(batches, expected):
    assert len(batches) == len(expected)
    for batch, other in zip(batches, expected, strict=True):
        assert len(batch) == len(other)
        for part, other_part in zip(batch, other, strict=True):
            assert part.dtype == other_part.dtype
            np.testing.assert_array_equal(part, other_part)


def starts(batches):
    return np.concatenate([x[:, 0] for x, _ in batches])


@pytest.mark.parametrize(
    ("num_ids", "sequence_length", "batch_size", "stride"),
    [
        (101, 7, 5, 1),
        (30, 5, 5, 1),  # 25 windows: no smaller batch at the end
        (31, 5, 5, 1),  # 26: a batch of one
        (11, 10, 3, 1),  # one window
        (29, 4, 999, 1),  # one batch
        (100, 9, 4, 3),
        (100, 9, 4, 20),
    ],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_a_pass_is_every_window_once(kind, monkeypatch, num_ids, sequence_length, batch_size, stride, shuffle):
    monkeypatch.setattr(MODULE, "_NUMBERS_PER_GROUP", 130)  # some three batches of the first case
    offsets = list(range(0, num_ids - sequence_length, stride))

    dataset = causal_windows(np.arange(num_ids), sequence_length, batch_size, stride, shuffle=shuffle, seed=5)
    batches = to_list(dataset)

    assert len(dataset) == len(batches) == -(-len(offsets) // batch_size)
    assert [len(x) for x, _ in batches[:-1]] == [batch_size] * (len(batches) - 1)
    found = starts(batches).tolist()
    assert (sorted(found) if shuffle else found) == offsets
    for x, y in batches:
        assert x.dtype == y.dtype == np.int32
        assert x.shape == y.shape
        for row, target in zip(x, y, strict=True):
            start = row[0]
            assert row.tolist() == list(range(start, start + sequence_length))
            assert target.tolist() == list(range(start + 1, start + sequence_length + 1))


def test_every_number_of_windows_is_permuted(no_tensorflow):
    for num_windows in [*range(1, 90), 257, 1009, 4096]:
        for seed in (0, 1, -1, 2**31 - 1, 2**40, np.int64(7)):
            dataset = causal_windows(np.arange(num_windows + 1), 1, num_windows, seed=seed)
            assert np.bincount(starts(to_list(dataset))).tolist() == [1] * num_windows


def test_a_million_windows_are_permuted(kind):
    dataset = causal_windows(np.arange(1_115_394), 1, 50_000, seed=1)
    found = starts(to_list(dataset))
    assert np.bincount(found).tolist() == [1] * 1_115_393


def test_the_order_has_no_pattern(no_tensorflow):
    """Against what independent uniform draws would give; every bound is at least five standard deviations wide."""
    num_windows, batch_size = 9973, 32
    orders = {}
    for seed in (0, 1):
        dataset = causal_windows(np.arange(num_windows + 1), 1, batch_size, seed=seed)
        orders.update({(seed, epoch): starts(to_list(dataset)).astype(float) for epoch in (0, 1)})

    def correlation(one, other):
        return abs(np.corrcoef(one, other)[0, 1]) * np.sqrt(len(one))

    numbers = np.arange(num_windows)
    for order in orders.values():
        assert correlation(order, numbers) < 5
        for lag in (1, 2, batch_size, 100):  # the grid of the permutation has 100 rows or a few more
            assert correlation(order[lag:], order[:-lag]) < 5
        _, repeats = np.unique(np.diff(order), return_counts=True)
        assert repeats.max() < 12
        batch_means = order[: num_windows // batch_size * batch_size].reshape(-1, batch_size).mean(axis=1)
        assert abs(batch_means.std() / (num_windows / np.sqrt(12 * batch_size)) - 1) < 0.2
        cells, _, _ = np.histogram2d(order[1:], order[:-1], bins=10)
        assert np.abs(cells - num_windows / 100).max() < 6 * np.sqrt(num_windows / 100)
    keys = sorted(orders)
    for first in range(len(keys)):
        for second in range(first):
            assert correlation(orders[keys[first]], orders[keys[second]]) < 5


def test_each_pass_has_its_own_order_and_the_seed_decides_it(kind):
    ids = np.arange(101)
    dataset = causal_windows(ids, 7, 8, seed=3)
    passes = [to_list(dataset) for _ in range(3)]
    orders = [starts(batches).tolist() for batches in passes]
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[0] != orders[1] != orders[2] != orders[0]

    again = causal_windows(ids, 7, 8, seed=3)
    for batches in passes:
        assert_same(to_list(again), batches)
    assert starts(to_list(causal_windows(ids, 7, 8, seed=4))).tolist() != orders[0]


def test_a_pass_that_is_broken_off_is_begun_anew(kind):
    ids = np.arange(101)
    expected = to_list(causal_windows(ids, 7, 8, seed=3))
    dataset = causal_windows(ids, 7, 8, seed=3)
    assert len(expected) == 12
    next(iter(dataset))
    assert_same(to_list(dataset.take(5)), expected[:5])
    assert_same(to_list(dataset.take(11)), expected[:11])
    assert_same(to_list(dataset), expected)
    assert starts(to_list(dataset)).tolist() != starts(expected).tolist()


def test_a_pass_goes_on_after_skip(kind):
    ids = np.arange(101)
    unbroken = causal_windows(ids, 7, 8, seed=3)
    resumed = causal_windows(ids, 7, 8, seed=3)
    for done in (1, 7, 11):
        rest = resumed.skip(done)
        assert len(rest) == 12 - done
        assert_same(to_list(rest), to_list(unbroken)[done:])
    assert_same(to_list(resumed), to_list(unbroken))


def test_repeat_goes_through_the_passes_and_skip_finds_any_step(kind):
    ids = np.arange(101)
    dataset = causal_windows(ids, 7, 8, seed=3)
    steps = [batch for _ in range(3) for batch in to_list(dataset)]
    for done in (5, 29):
        resumed = causal_windows(ids, 7, 8, seed=3).repeat().skip(done).take(36 - done)
        assert_same(to_list(resumed), steps[done:])


def test_without_tensorflow_the_batches_are_the_same(monkeypatch):
    tf = pytest.importorskip("tensorflow")
    monkeypatch.setattr(MODULE, "_NUMBERS_PER_GROUP", 300)
    for num_ids, sequence_length, batch_size, stride, seed in [(401, 7, 8, 1, -5), (111, 3, 5, 2, 2**40 + 1)]:
        ids = np.random.default_rng(0).integers(0, 11, num_ids)
        arguments = (ids, sequence_length, batch_size, stride, 0.3)
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, "tensorflow", None)
            others = causal_windows(*arguments, seed=seed)
        datasets = causal_windows(*arguments, seed=seed)
        for dataset, other in zip(datasets, others, strict=True):
            assert isinstance(dataset, tf.data.Dataset)
            assert isinstance(other, keras.utils.PyDataset)
            for _ in range(2):
                assert_same(to_list(dataset), to_list(other))


@pytest.mark.parametrize(
    ("num_ids", "validation_split", "sequence_length", "batch_size"),
    [
        (103, 0.3, 7, 2),
        (100, 0.29, 7, 3),  # 29 or 30 held out, for the product is not exact
        (100, 0.5, 7, 7),  # 49 predictions: nothing is filled up
        (60, 0.1, 13, 4),  # fewer predictions than a window holds
        (20, 0.1, 5, 4),  # one prediction
    ],
)
def test_validation_counts_every_held_out_prediction_once(kind, num_ids, validation_split, sequence_length, batch_size):
    ids = np.arange(1, num_ids + 1)
    split = int(np.floor(num_ids * (1 - validation_split)))
    held_out = ids[split:].tolist()

    train, validation = causal_windows(
        ids, sequence_length, batch_size, validation_split=validation_split, shuffle=False
    )
    batches = to_list(validation)

    assert len(validation) == len(batches)
    assert [len(x) for x, _, _ in batches[:-1]] == [batch_size] * (len(batches) - 1)
    x, y, weight = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    assert x.dtype == y.dtype == np.int32
    assert weight.dtype == np.float32
    assert x.shape == y.shape == weight.shape == (-(-(len(held_out) - 1) // sequence_length), sequence_length)
    num_predictions = len(held_out) - 1
    padding = [0] * (x.size - num_predictions)
    assert x.ravel().tolist() == held_out[:-1] + padding
    assert y.ravel().tolist() == held_out[1:] + padding
    assert weight.ravel().tolist() == [1.0] * num_predictions + padding
    assert_same(to_list(validation), batches)
    seen = np.concatenate([np.concatenate([x, y], axis=1).ravel() for x, y in to_list(train)])
    assert sorted(set(seen.tolist())) == ids[:split].tolist()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int64", ">i4", "list", "tensor"])
def test_ids_of_any_integer_type(no_tensorflow, dtype):
    ids = np.arange(200)
    given = {"list": ids.tolist(), "tensor": keras.ops.convert_to_tensor(ids, "int32")}
    given = given[dtype] if dtype in given else ids.astype(dtype)
    x, y = next(iter(causal_windows(given, 5, 4, shuffle=False, vocabulary_size=200)))
    assert x.dtype == y.dtype == np.int32
    assert y.tolist() == [list(range(start + 1, start + 6)) for start in range(4)]


def test_ids_are_copied(kind):
    ids = np.arange(50, dtype="int32")
    datasets = causal_windows(ids, 5, 4, validation_split=0.5, shuffle=False)
    ids[:] = -7
    for dataset in datasets:
        assert min(x.min() for x, *_ in to_list(dataset)) >= 0


def test_tf_data_has_fixed_types_and_length():
    tf = pytest.importorskip("tensorflow")
    train, validation = causal_windows(np.arange(100), 7, 8, validation_split=0.3, seed=1)
    assert train.element_spec == (tf.TensorSpec((None, 7), "int32"),) * 2
    assert validation.element_spec == (
        tf.TensorSpec((None, 7), "int32"),
        tf.TensorSpec((None, 7), "int32"),
        tf.TensorSpec((None, 7), "float32"),
    )
    assert int(train.cardinality()) == 8
    assert int(validation.cardinality()) == 1


def test_without_seed_the_global_one_governs(no_tensorflow):
    orders = []
    for seed in (1, 1, 2):
        keras.utils.set_random_seed(seed)
        orders += [starts(to_list(causal_windows(np.arange(101), 7, 8))).tolist() for _ in range(2)]
    assert orders[:2] == orders[2:4]
    assert orders[0] != orders[1]
    assert orders[0] != orders[4]


def little_model():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((7,), dtype="int32"), keras.layers.Embedding(11, 5), keras.layers.Dense(11)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    model.compile("sgd", loss, weighted_metrics=["accuracy"])
    return model


def test_fit_sees_one_pass_after_another(monkeypatch):
    pytest.importorskip("tensorflow")
    ids = np.random.default_rng(0).integers(0, 11, 150)
    arguments = {"sequence_length": 7, "batch_size": 8, "validation_split": 0.2, "seed": 3}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorflow", None)
        without_tensorflow = causal_windows(ids, **arguments)
        reference, _ = causal_windows(ids, **arguments)
    expected = [to_list(reference) for _ in range(3)][-1]
    weights = []
    for train, validation in (causal_windows(ids, **arguments), without_tensorflow):
        model = little_model()
        history = model.fit(train, validation_data=validation, epochs=2, shuffle=False, verbose=0).history
        assert np.isfinite(history["val_loss"]).all()
        assert_same(to_list(train), expected)
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)


def test_without_tensorflow_repeat_comes_first(no_tensorflow):
    dataset = causal_windows(np.arange(101), 7, 8, seed=3)
    for part in (dataset.take(5), dataset.skip(5)):
        with pytest.raises(ValueError, match=r"repeat\(\) before take\(\) or skip\(\)"):
            part.repeat()
    with pytest.raises(TypeError, match="no length"):
        len(dataset.repeat())
    assert dataset.repeat().num_batches is None
    for index in (-1, 12):
        with pytest.raises(IndexError, match="of 12"):
            dataset[index]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"token_ids": [0] * 5}, r"sequence_length=5 takes 6 ids\. Received: 5 for training and 0 held out"),
        ({"token_ids": []}, "Received: 0 for training"),
        ({"token_ids": [0] * 10, "validation_split": 0.5}, r"Received: 5 .* 5 held out \(validation_split=0.5\)"),
        ({"token_ids": [0] * 10, "validation_split": 0.1}, "A prediction takes 2 ids.*1 held out"),
        ({"token_ids": [0] * 10, "validation_split": 0.001}, "A prediction takes 2 ids.*1 held out"),
        ({"token_ids": [0.5] * 10}, "integers. Received: float64"),
        ({"token_ids": [True] * 10}, "integers. Received: bool"),
        ({"token_ids": [[0] * 10]}, r"rank 1. Received: shape \(1, 10\)"),
        ({"token_ids": 3}, r"rank 1. Received: shape \(\)"),
        ({"token_ids": "text"}, "a tokenizer's `encode` makes them of text. Received: text"),
        ({"token_ids": [0] * 9 + [7, 8], "vocabulary_size": 7}, r"vocabulary_size=7\)\. Received: 7 at \[9\]"),
        ({"token_ids": [0] * 9 + [-3]}, r"Received: -3 at \[9\]"),
        ({"token_ids": [0] * 9 + [2**31]}, r"int32.*Received: 2147483648 at \[9\]"),
        ({"sequence_length": 0}, "`sequence_length` must be a positive integer.*0"),
        ({"sequence_length": 2.5}, "`sequence_length` must be a positive integer.*2.5"),
        ({"batch_size": -1}, "`batch_size` must be a positive integer.*-1"),
        ({"batch_size": None}, "`batch_size` must be a positive integer.*None"),
        ({"stride": 0}, "`stride` must be a positive integer.*0"),
        ({"stride": True}, "`stride` must be a positive integer.*True"),
        ({"vocabulary_size": 0}, "`vocabulary_size` must be a positive integer or None.*0"),
        ({"validation_split": 1.0}, "`validation_split`.*1.0"),
        ({"validation_split": -0.1}, "`validation_split`.*-0.1"),
        ({"validation_split": float("nan")}, "`validation_split`.*nan"),
        ({"validation_split": None}, "`validation_split`.*None"),
        ({"seed": 0.5}, "`seed` must be an integer or None.*0.5"),
        ({"seed": "one"}, "`seed` must be an integer or None.*'one'"),
    ],
)
def test_wrong_arguments(no_tensorflow, changes, message):
    with pytest.raises(ValueError, match=message):
        causal_windows(**{"token_ids": [0] * 20, "sequence_length": 5, "batch_size": 2, **changes})


def test_the_shortest_text(kind):
    [(x, y)] = to_list(causal_windows([3, 1], 1, 1))
    assert (x.tolist(), y.tolist()) == ([[3]], [[1]])
