"""The oracle pads the rows in plain Python."""

import sys

import keras
import numpy as np
import pytest

from keras_lt.objectives import pairs
from testing import to_numpy

START, END = 2, 1
NAMES = ["source", "source_padding_mask", "target", "target_padding_mask"]


def make_texts(num_pairs):
    random = np.random.default_rng(0)
    sources = [random.integers(0, 13, random.integers(1, 9)) for _ in range(num_pairs)]
    targets = [random.integers(3, 13, random.integers(0, 6)) for _ in range(num_pairs)]
    return sources, targets


def joined(dataset):
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *map(to_numpy, dataset))


def padded(row, length, value=0):
    return [*row, *[value] * (length - len(row))]


def test_all_targets_may_be_empty(kind):
    x, y, weight = joined(pairs([[3, 4], [5]], [[], []], 2, START, END, shuffle=False))
    assert x["target"].tolist() == [[START], [START]]
    assert y.tolist() == [[END], [END]]
    assert weight.tolist() == [[1], [1]]


@pytest.mark.parametrize(("num_pairs", "batch_size"), [(23, 5), (20, 5), (1, 3)])
@pytest.mark.parametrize("lengths", [{}, {"source_length": 11, "target_length": 14}])
def test_rows_are_padded(kind, num_pairs, batch_size, lengths):
    sources, targets = make_texts(num_pairs)
    dataset = pairs(sources, targets, batch_size, START, END, shuffle=False, vocabulary_size=13, **lengths)
    assert len(dataset) == -(-num_pairs // batch_size)
    assert [len(y) for _, y, _ in dataset][:-1] == [batch_size] * (len(dataset) - 1)
    x, y, weight = joined(dataset)
    assert list(x) == NAMES
    assert [x[name].dtype for name in NAMES] == ["int32", "bool"] * 2
    assert (y.dtype, weight.dtype) == ("int32", "float32")
    source_length = lengths.get("source_length", max(map(len, sources)))
    target_length = lengths.get("target_length", max(map(len, targets)) + 1)
    assert x["source"].tolist() == [padded(source, source_length) for source in sources]
    assert x["source_padding_mask"].tolist() == [padded([True] * len(row), source_length, False) for row in sources]
    assert x["target"].tolist() == [padded([START, *target], target_length) for target in targets]
    real = [padded([True] * (len(target) + 1), target_length, False) for target in targets]
    assert x["target_padding_mask"].tolist() == real
    assert y.tolist() == [padded([*target, END], target_length) for target in targets]
    assert weight.tolist() == np.array(real, "float32").tolist()


def test_shuffled_passes_are_the_same_pairs_in_other_orders(kind):
    sources, targets = [[number, 90] for number in range(90)], [[number] * (number % 4) for number in range(90)]
    orders = []
    for seed in (3, 4):
        dataset = pairs(sources, targets, 8, 91, 92, seed=seed)
        for _ in range(2):
            x, y, _ = joined(dataset)
            order = x["source"][:, 0].tolist()
            assert sorted(order) == list(range(90))
            assert y.tolist() == [padded([*targets[number], 92], 4) for number in order]
            orders.append(order)
    assert all(one != other for number, one in enumerate(orders) for other in [sorted(one), *orders[:number]])


def test_without_tensorflow_the_batches_are_the_same(monkeypatch):
    tf = pytest.importorskip("tensorflow")
    arguments = *make_texts(40), 7, START, END
    datasets = [pairs(*arguments, seed=-5)]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorflow", None)
        datasets.append(pairs(*arguments, seed=-5))
    assert isinstance(datasets[0], tf.data.Dataset)
    assert isinstance(datasets[1], keras.utils.PyDataset)
    x, y, weight = datasets[0].element_spec
    assert [x[name].dtype for name in NAMES] == [tf.int32, tf.bool] * 2
    assert [spec.shape[0] for spec in (*x.values(), y, weight)] == [None] * 6
    for one, other in zip(*(keras.tree.flatten(joined(dataset)) for dataset in datasets), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sources": [[3]]}, "as many sources as targets. Received: 1 sources and 2 targets"),
        ({"sources": []}, "`sources` must hold one text or more"),
        ({"targets": []}, "`targets` must hold one text or more"),
        ({"sources": [[3], []]}, r"`sources` must not be empty. Received: no id in sources\[1\]"),
        ({"sources": [[3], [13]]}, r"`sources\[1\]` .*vocabulary_size=13\). Received: 13 at \[0\]"),
        ({"targets": [[4, 13], []]}, r"`targets\[0\]` .*Received: 13 at \[1\]"),
        ({"targets": [[4], [[5]]]}, r"`targets\[1\]` must have rank 1"),
        ({"targets": [[], [4, END]]}, r"special ids \[2, 1\]. Received: 1 at \[1\] of targets\[1\], and 0 more"),
        ({"targets": [[START], []]}, r"Received: 2 at \[0\] of targets\[0\]"),
        ({"end_token_id": START}, "differ. Received: 2 in start_token_id and in end_token_id"),
        ({"end_token_id": 13}, "`end_token_id` .*13"),
        ({"source_length": 2}, "`source_length` must hold the longest row, 3 ids. Received: source_length=2"),
        ({"target_length": 2}, "`target_length` must hold the longest row, 3 ids. Received: target_length=2"),
        ({"source_length": 0}, "`source_length` must be a positive integer or None"),
        ({"target_length": 2.5}, "`target_length` must be a positive integer or None"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"seed": 0.5}, "`seed` must be an integer or None"),
    ],
)
def test_wrong_arguments(no_tensorflow, changes, message):
    arguments = {"sources": [[3, 4, 5], [6]], "targets": [[4, 5], []], "batch_size": 2, "vocabulary_size": 13}
    with pytest.raises(ValueError, match=message):
        pairs(**{**arguments, "start_token_id": START, "end_token_id": END, **changes})
