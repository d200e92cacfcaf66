"""The oracle puts a window together again, in plain Python, from what is left of it and what was taken out.

Ids that count up from 0 tell where in the text a place lies; special ids stand above them, out of order.
"""

import itertools
import sys

import keras
import numpy as np
import pytest

from keras_lt.objectives import span_corruption

START, END = 5003, 5002
SENTINELS = [5010, 5001, 5007, 5004, 5000, 5009, 5011, 5006]


def make(ids, sequence_length, batch_size, **kwargs):
    arguments = {"sentinel_ids": SENTINELS, "start_token_id": START, "end_token_id": END, **kwargs}
    return span_corruption(ids, sequence_length, batch_size, **arguments)


def to_list(dataset):
    return [keras.tree.map_structure(np.asarray, batch) for batch in dataset]


def joined(dataset):
    batches = to_list(dataset)
    return keras.tree.map_structure(lambda *parts: np.concatenate(parts), *batches)


def pieces(row):
    """What stands before, between and behind the sentinels of a row, which are checked to come in their order."""
    found = [[]]
    for item in row:
        if item in SENTINELS:
            assert item == SENTINELS[len(found) - 1]
            found.append([])
        else:
            found[-1].append(item)
    return found


def segments(source, y):
    """The kept pieces and the spans of a window, `[(kept, span), ...]`, from a row of each."""
    assert source[-1] == y[-1] == END
    *kept, behind = pieces(source[:-1])
    before, *spans = pieces(y[:-1])
    assert before == behind == []
    assert len(kept) == len(spans)
    return list(zip(kept, spans, strict=True))


def assert_same(batches, others):
    assert len(batches) == len(others)
    for batch, other in zip(batches, others, strict=True):
        keras.tree.assert_same_structure(batch, other)
        for one, another in zip(keras.tree.flatten(batch), keras.tree.flatten(other), strict=True):
            assert one.dtype == another.dtype
            np.testing.assert_array_equal(one, another)


@pytest.mark.parametrize(
    ("length", "batch_size", "density", "mean", "stride", "num_noise", "num_spans"),
    [
        (20, 7, 0.15, 3.0, 1, 3, 1),
        (31, 4, 0.3, 2.0, 3, 9, 4),  # 9.3 ids, 4.5 spans: a half is rounded to the even number
        (13, 6, 0.5, 1.0, 1, 6, 6),  # 6.5 ids; spans of one id each
        (8, 200, 0.8, 3.0, 1, 6, 2),  # as many kept ids as spans
        (2, 5, 0.4, 9.0, 1, 1, 1),
    ],
)
def test_windows_can_be_put_together_again(kind, length, batch_size, density, mean, stride, num_noise, num_spans):
    offsets = list(range(0, 100 - length + 1, stride))
    settings = {"noise_density": density, "mean_span_length": mean, "stride": stride, "seed": 3}
    dataset = make(np.arange(100), length, batch_size, **settings)
    batches = to_list(dataset)
    assert len(dataset) == len(batches) == -(-len(offsets) // batch_size)
    assert [len(y) for _, y, _ in batches[:-1]] == [batch_size] * (len(batches) - 1)
    x, y, weight = joined(dataset)
    assert set(x) == {"source", "target"}
    assert x["source"].dtype == x["target"].dtype == y.dtype == np.int32
    assert x["source"].shape[1] == length - num_noise + num_spans + 1
    assert y.shape[1] == num_noise + num_spans + 1
    assert weight.dtype == np.float32
    assert weight.shape == y.shape
    assert weight.min() == 1
    np.testing.assert_array_equal(x["target"][:, 1:], y[:, :-1])
    assert (x["target"][:, 0] == START).all()
    found = []
    for source, answer in zip(x["source"].tolist(), y.tolist(), strict=True):
        parts = segments(source, answer)
        assert len(parts) == num_spans
        assert all(kept and span for kept, span in parts)
        window = [item for kept, span in parts for item in kept + span]
        assert window == list(range(window[0], window[0] + length))
        found.append(window[0])
    assert found != offsets
    assert sorted(found) == offsets
    in_order = joined(make(np.arange(100), length, batch_size, shuffle=False, **settings))
    assert in_order[0]["source"][:, 0].tolist() == offsets


def test_all_segmentations_are_equally_likely(no_tensorflow):
    """5 taken and 6 kept ids in 3 pieces each: 6 * 10 ways; chi-square with 59 degrees of freedom in two passes."""

    def lengths(count):
        for cuts in itertools.combinations(range(1, count), 2):
            yield tuple(np.diff([0, *cuts, count]).tolist())

    ways = list(itertools.product(lengths(6), lengths(5)))
    assert len(ways) == 60
    dataset = make(np.arange(5000), 11, 999, noise_density=0.45, mean_span_length=5 / 3, shuffle=False, seed=1)
    seen = []
    for _ in range(2):
        x, y, _ = joined(dataset)
        found = [segments(*rows) for rows in zip(x["source"].tolist(), y.tolist(), strict=True)]
        num_windows = len(found)
        found = [tuple(tuple(map(len, pair)) for pair in zip(*parts, strict=True)) for parts in found]
        counts = np.array([found.count(way) for way in ways])
        assert counts.sum() == num_windows == 4990
        expected = num_windows / 60
        assert ((counts - expected) ** 2 / expected).sum() < 59 + 5 * np.sqrt(2 * 59)
        seen.append(found)
    same = sum(one == other for one, other in zip(*seen, strict=True))
    assert abs(same - num_windows / 60) < 5 * np.sqrt(num_windows / 60)
    neighbours = sum(one == other for one, other in itertools.pairwise(seen[0]))
    assert abs(neighbours - num_windows / 60) < 5 * np.sqrt(num_windows / 60)


def test_every_pass_takes_out_other_spans_and_the_seed_decides(kind):
    def dataset(seed=3):
        return make(np.arange(200), 20, 9, noise_density=0.3, validation_split=0.3, shuffle=False, seed=seed)

    train, validation = dataset()
    passes = [to_list(train) for _ in range(3)]
    sources = [np.concatenate([x["source"] for x, _, _ in batches]) for batches in passes]
    assert all((one != other).any() for one, other in itertools.combinations(sources, 2))
    assert_same(to_list(validation), to_list(validation))
    steps = to_list(dataset()[0].repeat().skip(20).take(13))  # of 14 batches a pass
    assert_same(steps, [batch for batches in passes for batch in batches][20:33])
    for one, other in zip(dataset(), dataset(4), strict=True):
        assert (joined(one)[0]["source"] != joined(other)[0]["source"]).any()


def test_without_tensorflow_the_batches_are_the_same(monkeypatch):
    tf = pytest.importorskip("tensorflow")
    ids = np.random.default_rng(0).integers(0, 90, 400)
    settings = {"noise_density": 0.4, "validation_split": 0.4, "stride": 2, "seed": -5}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorflow", None)
        others = make(ids, 23, 8, **settings)
    for dataset, other in zip(make(ids, 23, 8, **settings), others, strict=True):
        assert isinstance(dataset, tf.data.Dataset)
        assert isinstance(other, keras.utils.PyDataset)
        for _ in range(2):
            assert_same(to_list(dataset), to_list(other))


@pytest.mark.parametrize("num_ids", [97, 100, 40, 57])
def test_validation_counts_what_is_new_in_a_window(kind, num_ids):
    split, length = num_ids // 2, 20
    ids = np.arange(num_ids)
    train, validation = make(ids, length, 2, noise_density=0.5, validation_split=0.5, seed=2)
    x, y, weight = joined(validation)
    assert len(y) == -(-(num_ids - split) // length)
    reached = split
    for source, answer, weights in zip(x["source"].tolist(), y.tolist(), weight.tolist(), strict=True):
        parts = segments(source, answer)
        window = [item for kept, span in parts for item in kept + span]
        assert window[0] == min(reached, num_ids - length)
        expected = [float(item >= reached) for _, span in parts for item in [span[0], *span]]
        assert weights == [*expected, 1.0]
        reached = window[-1] + 1
    assert reached == num_ids
    assert (weight.min() == 0) == ((num_ids - split) % length > 0)
    sources = joined(train)[0]["source"]
    assert sources[sources < 5000].max() < split


def test_tf_data_has_fixed_types():
    tf = pytest.importorskip("tensorflow")
    ids, shapes = np.arange(100), {"source": (None, 19), "target": (None, 5)}
    x = {name: tf.TensorSpec(shape, "int32") for name, shape in shapes.items()}
    for dataset in make(ids, 20, 8, validation_split=0.3, seed=1):
        assert dataset.element_spec == (x, tf.TensorSpec((None, 5), "int32"), tf.TensorSpec((None, 5), "float32"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sentinel_ids": SENTINELS[:2]}, "must be 3 or more: 9 of 60 ids .* in 3 spans. Received: 2 sentinels"),
        ({"sentinel_ids": []}, "must be 3 or more.*Received: 0 sentinels"),
        ({"sentinel_ids": [1001, 1002, 1001]}, "differ. Received: 1001 in sentinel_ids and in sentinel_ids"),
        ({"sentinel_ids": [1001, END, 1003]}, f"differ. Received: {END} in sentinel_ids and in end_token_id"),
        ({"start_token_id": END}, f"differ. Received: {END} in start_token_id and in end_token_id"),
        ({"sentinel_ids": [1001, 1002, 77]}, r"`token_ids` must not hold .*1002, 77.*Received: 77 at \[77\]"),
        ({"start_token_id": [1005, 1006]}, r"`start_token_id` must be one integer. Received: \[1005, 1006\]"),
        ({"start_token_id": 0}, r"Received: 0 at \[0\], and 1 more"),
        ({"end_token_id": 99}, r"Received: 99 at \[99\]"),
        ({"sentinel_ids": [1001, 1002, -1]}, "`sentinel_ids` must be whole numbers"),
        ({"sentinel_ids": 1001}, "must be 3 or more"),
        ({"vocabulary_size": 5008}, r"`sentinel_ids` .*\(vocabulary_size=5008\). Received: 5010 at \[0\]"),
        ({"vocabulary_size": 5012, "token_ids": [5012] * 200}, "`token_ids` .*5012"),
        ({"noise_density": 0}, "takes out 0 in 1 spans"),
        ({"noise_density": 1.0}, "and keeps 0"),
        ({"noise_density": 1.5}, "`noise_density` must be a number, from 0 to 1. Received: noise_density=1.5"),
        ({"noise_density": 0.8, "mean_span_length": 1}, r"takes out 48 in 48 spans .* keeps 12"),
        ({"mean_span_length": 0.5}, "`mean_span_length` must be a number, 1 or more"),
        ({"sequence_length": 3}, "sequence_length=3, of which noise_density=0.15 takes out 0"),
        ({"sequence_length": 201, "noise_density": 0.1}, "sequence_length=201 ids. Received: 200 for training"),
        ({"validation_split": 0.2}, "Received: 160 for training and 40 held out"),
        ({"batch_size": 0}, "`batch_size` must be a positive integer"),
        ({"stride": 0}, "`stride` must be a positive integer"),
        ({"seed": 0.5}, "`seed` must be an integer"),
    ],
)
def test_wrong_arguments(no_tensorflow, changes, message):
    arguments = {"token_ids": [*range(100), *range(100)], "sequence_length": 60, "batch_size": 2, **changes}
    with pytest.raises(ValueError, match=message):
        make(arguments.pop("token_ids"), arguments.pop("sequence_length"), arguments.pop("batch_size"), **arguments)
