"""The oracle walks through the documents in plain Python; what a model gives is held against each document alone."""

import sys

import keras
import numpy as np
import pytest

from keras_lt.models import LittleTransformer
from keras_lt.objectives import pack
from testing import to_numpy

SEPARATOR = 1


def make_documents(*lengths):
    random = np.random.default_rng(0)
    return [random.integers(2, 13, length) for length in lengths]


def joined(dataset):
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *map(to_numpy, dataset))


def expected_windows(documents, length):
    """Rows of (id, segment, answer, weight), window by window."""
    stream = [
        (item, number, answer)
        for number, document in enumerate(documents)
        for item, answer in zip([SEPARATOR, *document], [*document, SEPARATOR], strict=True)
    ]
    windows = []
    for begin in range(0, len(stream), length):
        part = stream[begin : begin + length]
        rows = [(item, number - part[0][1] + 1, answer, 1.0) for item, number, answer in part]
        windows.append(rows + [(0, 0, 0, 0.0)] * (length - len(part)))
    return windows


@pytest.mark.parametrize(
    ("lengths", "sequence_length", "batch_size"),
    [
        ((3, 9, 1, 30, 2, 2), 11, 2),
        ((4, 5, 2), 7, 5),  # 14 predictions: nothing is filled up
        ((2, 1), 9, 3),  # one window, and not full
        ((1,), 1, 1),
    ],
)
def test_windows_lie_side_by_side(kind, lengths, sequence_length, batch_size):
    documents = make_documents(*lengths)
    windows = expected_windows(documents, sequence_length)
    dataset = pack(documents, sequence_length, batch_size, SEPARATOR, shuffle=False, vocabulary_size=13)
    assert len(dataset) == -(-len(windows) // batch_size)
    assert [len(y) for _, y, _ in dataset][:-1] == [batch_size] * (len(dataset) - 1)
    x, y, weight = joined(dataset)
    assert set(x) == {"token_ids", "segment_ids"}
    assert [x["token_ids"].dtype, x["segment_ids"].dtype, y.dtype, weight.dtype] == ["int32"] * 3 + ["float32"]
    found = np.stack([x["token_ids"], x["segment_ids"], y, weight], axis=-1)
    assert found.tolist() == np.array(windows).tolist()


def test_shuffled_passes_are_the_same_windows_in_other_orders(kind):
    documents = make_documents(*range(1, 12))  # 77 predictions: nothing is filled up
    arguments = documents, 7, 4, SEPARATOR
    in_order = joined(pack(*arguments, shuffle=False))[0]["token_ids"].tolist()
    orders = []
    for seed in (3, 4):
        dataset = pack(*arguments, seed=seed)
        for _ in range(2):
            x, y, _ = joined(dataset)
            assert sorted(x["token_ids"].tolist()) == sorted(in_order)
            np.testing.assert_array_equal(y[:, :-1], x["token_ids"][:, 1:])
            orders.append(x["token_ids"].tolist())
    assert all(one != other for number, one in enumerate(orders) for other in [in_order, *orders[:number]])


def test_without_tensorflow_the_batches_are_the_same(monkeypatch):
    tf = pytest.importorskip("tensorflow")
    documents = make_documents(*range(1, 20))
    datasets = [pack(documents, 7, 4, SEPARATOR, seed=-5)]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorflow", None)
        datasets.append(pack(documents, 7, 4, SEPARATOR, seed=-5))
    assert isinstance(datasets[0], tf.data.Dataset)
    assert isinstance(datasets[1], keras.utils.PyDataset)
    spec = tf.TensorSpec((None, 7), "int32")
    weights = tf.TensorSpec((None, 7), "float32")
    assert datasets[0].element_spec == ({"token_ids": spec, "segment_ids": spec}, spec, weights)
    for one, other in zip(*(keras.tree.flatten(joined(dataset)) for dataset in datasets), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_a_model_reads_each_document_as_if_alone(position):
    documents, length = make_documents(5, 3, 17, 1, 4), 11
    keras.utils.set_random_seed(1)
    model = LittleTransformer(13, length, num_layers=2, num_heads=2, hidden_dim=12, position=position)
    model.set_weights([2 * weight for weight in model.get_weights()])  # attention that is far from uniform
    x, y, weight = joined(pack(documents, length, 9, SEPARATOR, shuffle=False))
    logits = to_numpy(model(x))
    parts, expected = [], []
    for row, segments in zip(x["token_ids"], x["segment_ids"], strict=True):
        parts += [row[segments == number] for number in range(1, segments.max() + 1)]
    alone = np.zeros((len(parts), length), "int32")  # the model looks back only, so what stands behind does not count
    for number, part in enumerate(parts):
        alone[number, : len(part)] = part
    rows = to_numpy(model(alone))
    expected = np.concatenate([row[: len(part)] for row, part in zip(rows, parts, strict=True)])
    # The second decoding law's bound: in another place sums round differently, and doubled weights enlarge that.
    np.testing.assert_allclose(logits[weight == 1], expected, rtol=0, atol=1e-4)
    crossing = to_numpy(model(x["token_ids"]))[weight == 1]
    assert np.abs(crossing - expected).max() > 0.1

    model.compile(weighted_metrics="auto", run_eagerly=True)
    results = model.evaluate(pack(documents, length, 2, SEPARATOR), verbose=0, return_dict=True)
    shifted = expected - expected.max(axis=-1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=-1)) - shifted[np.arange(len(shifted)), y[weight == 1]]
    assert len(losses) == sum(map(len, documents)) + len(documents)
    np.testing.assert_allclose(np.log(results["perplexity"]), losses.mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"documents": []}, "`documents` must hold one text or more. Received: none"),
        ({"documents": [[3], []]}, r"`documents` must not be empty. Received: no id in documents\[1\]"),
        ({"documents": [[3], [4, 1, 1]]}, r"special ids \[1\]. Received: 1 at \[1\] of documents\[1\], and 1 more"),
        ({"documents": [[3], [4, 13]]}, r"`documents\[1\]` .*vocabulary_size=13\). Received: 13 at \[1\]"),
        ({"documents": [[3], [-1]]}, r"`documents\[1\]` .*Received: -1 at \[0\]"),
        ({"documents": [[3], [0.5]]}, r"`documents\[1\]` must be integers. Received: float64"),
        ({"documents": [3, 4]}, r"`documents\[0\]` must have rank 1. Received: shape \(\)"),
        ({"documents": "text"}, "`documents` must be a list of texts, each of them integers. Received: 'text'"),
        ({"documents": 3}, "`documents` must be a list of texts"),
        ({"separator_id": 13}, r"`separator_id` .*vocabulary_size=13\). Received: 13"),
        ({"separator_id": None}, "`separator_id` must be integers"),
        ({"sequence_length": 0}, "`sequence_length` must be a positive integer"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"vocabulary_size": 0}, "`vocabulary_size` must be a positive integer or None"),
        ({"seed": "one"}, "`seed` must be an integer or None"),
    ],
)
def test_wrong_arguments(no_tensorflow, changes, message):
    arguments = {"documents": [[3], [4, 5]], "sequence_length": 5, "batch_size": 2, "separator_id": SEPARATOR}
    with pytest.raises(ValueError, match=message):
        pack(**{**arguments, "vocabulary_size": 13, **changes})
