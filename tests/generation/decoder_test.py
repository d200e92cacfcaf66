"""The decode loop against plain Python, on a model whose logits are tables; what `generate` and `stream` refuse."""

import gc
import weakref

import keras
import numpy as np
import pytest

from generation_testing import TableModel, assert_distributed, greedy, log_softmax
from keras_lt.generation import BeamSearch, Sampler
from keras_lt.generation.decoder import length_bucket, row_bucket
from testing import BACKEND, assert_close

V = 11
# Three prompts make a bucket, and with up to 7 new tokens the sequences of one bucket, 16 long.
PROMPTS = [[3, 9, 2, 2, 7], [10], [0, 8, 1]]


@pytest.fixture(scope="module")
def shared_model():
    return TableModel(V)


@pytest.fixture
def model(shared_model):
    """One model, and so one set of compiled loops, for all tests; each starts with the same tables."""
    shared_model.draw(0)
    return shared_model


def lists(rows):
    rows = list(rows)
    assert all(row.dtype == "int32" and row.ndim == 1 for row in rows)
    return [row.tolist() for row in rows]


def sampled(model, prompts=PROMPTS, max_new_tokens=7, sampler=None, **arguments):
    return lists(model.generate(prompts, max_new_tokens, sampler=sampler or Sampler(), **arguments))


# Greedy


@pytest.mark.parametrize("max_new_tokens", [0, 1, 7])
def test_greedy_equals_python(model, max_new_tokens):
    for seed in range(3):
        model.draw(seed)
        expected = [greedy(model, prompt, max_new_tokens) for prompt in PROMPTS]
        assert lists(model.generate(PROMPTS, max_new_tokens)) == expected


def test_order_and_company_change_nothing(model):
    expected = {tuple(prompt): greedy(model, prompt, 7) for prompt in PROMPTS}
    for prompts in (PROMPTS[::-1], [PROMPTS[1]] * 3, [PROMPTS[0], PROMPTS[2], PROMPTS[0]]):
        assert lists(model.generate(prompts, 7)) == [expected[tuple(prompt)] for prompt in prompts]
    for prompt in PROMPTS:
        assert lists(model.generate([prompt], 7)) == [expected[tuple(prompt)]]


def test_past_the_context():
    """Of the four prompts two slide at once, of which one did not fit by itself, and two after some steps."""
    model = TableModel(V, max_sequence_length=7, seed=5)
    prompts = [[3, 9], [1, 2, 3, 4, 5, 6, 7, 8, 9], [4, 4, 0, 10, 6, 2, 1], [8]]
    for stops in ([], [5, 0], [2]):
        rows = model.generate(prompts, 7, stop_token_ids=stops)
        assert lists(rows) == [greedy(model, prompt, 7, stops) for prompt in prompts]


def test_shortest_context(without_xla):
    model = TableModel(V, max_sequence_length=1, seed=5)
    expected = greedy(model, [3, 9, 4], 7)
    assert lists(model.generate([[3, 9, 4]], 7)) == [expected]
    assert [3, 9, 4, *np.concatenate(list(model.stream([3, 9, 4], 7))).tolist()] == expected


def test_stop_tokens(model):
    firsts = [greedy(model, prompt, 1)[-1] for prompt in PROMPTS]
    thirds = [greedy(model, prompt, 3)[-1] for prompt in PROMPTS]
    for stops in ([firsts[0]], [thirds[1]], [thirds[2], firsts[1]], list(range(V)), [], None):
        expected = [greedy(model, prompt, 7, stops or ()) for prompt in PROMPTS]
        assert lists(model.generate(PROMPTS, 7, stop_token_ids=stops)) == expected
    alone = lists(model.generate(PROMPTS, 7, stop_token_ids=firsts[0]))
    assert alone == lists(model.generate(PROMPTS, 7, stop_token_ids=np.array([firsts[0]])))
    assert alone[0] == PROMPTS[0] and len(alone[1]) > 1


def test_a_prompt_may_hold_stop_tokens(model):
    assert lists(model.generate(PROMPTS, 3, stop_token_ids=[7, 10, 1, 0]))[0][:5] == PROMPTS[0]


# What prompts may be


def test_kinds_of_prompts(model):
    expected = [greedy(model, prompt, 3) for prompt in PROMPTS]
    padded = np.zeros((3, 5), "int64")
    for row, prompt in zip(padded, PROMPTS, strict=True):
        row[: len(prompt)] = prompt
    lengths = [len(prompt) for prompt in PROMPTS]
    to_tensor = keras.ops.convert_to_tensor
    kinds = {
        "arrays": ([np.array(prompt, "int16") for prompt in PROMPTS], None),
        "tuples": (tuple(map(tuple, PROMPTS)), None),
        "tensors": ([to_tensor(prompt, "int32") for prompt in PROMPTS], None),
        "array, list": (padded, lengths),
        "array, array": (padded.astype("uint8"), np.array(lengths)),
        "tensor, tensor": (to_tensor(padded, "int32"), to_tensor(lengths, "int32")),
        "whole floats": (padded.astype("float32"), lengths),
        "list of rows, list": (padded.tolist(), lengths),
    }
    for kind, (token_ids, lengths) in kinds.items():
        assert lists(model.generate(token_ids, 3, lengths=lengths)) == expected, kind
    same_length = np.array([[3, 9], [1, 0], [0, 0]])
    assert lists(model.generate(same_length, 3)) == [greedy(model, prompt, 3) for prompt in same_length.tolist()]


def test_results_are_the_users(model):
    prompts = [np.array(prompt, "int32") for prompt in PROMPTS]
    for row in model.generate(prompts, 0):
        row[:] = 0
    assert lists(prompts) == PROMPTS and lists(model.generate(prompts, 0)) == PROMPTS


def test_no_prompts(model):
    for nothing in ([], (), np.zeros((0, 5), "int32")):
        assert model.generate(nothing, 7) == []
        assert model.generate(nothing, 7, lengths=[], seed=[], return_log_probs=2) == ([], [])


def test_trailing_zeros_of_an_array_are_padding_with_mask_zero(model, monkeypatch):
    monkeypatch.setattr(model, "mask_zero", True)
    padded = np.array([[3, 9, 2, 2, 7], [10, 0, 0, 0, 0], [0, 8, 1, 0, 0]])
    assert lists(model.generate(padded, 3)) == [greedy(model, prompt, 3) for prompt in PROMPTS]
    assert lists(model.generate([[3, 0], [10], [0, 8, 1]], 3))[0][:2] == [3, 0]
    padded[1] = 0
    with pytest.raises(ValueError, match="Prompt 1 is empty"):
        model.generate(padded, 3)


# Samples


def test_seed_of_each_row(model):
    """A row's tokens hang on its prompt and its seed alone."""
    seeds = [5, 2**40 + 1, 0]
    together = sampled(model, seed=seeds)
    assert together == sampled(model, seed=np.array(seeds))
    assert together[::-1] == sampled(model, PROMPTS[::-1], seed=seeds[::-1])
    for prompt, seed, row in zip(PROMPTS, seeds, together, strict=True):
        assert sampled(model, [prompt], seed=[seed]) == [row] == sampled(model, [prompt], seed=seed)
        assert sampled(model, [prompt] * 3, seed=[seed] * 3) == [row] * 3
    samples = sampled(model, seed=seeds, num_samples=2)
    assert samples[2:4] == sampled(model, [[4], PROMPTS[1], [7]], seed=[1, seeds[1], 2], num_samples=2)[2:4]


def test_one_seed(model):
    rows = sampled(model, [[4]] * 3, seed=7)
    assert rows == sampled(model, [[4]] * 3, seed=7) == sampled(model, [[4]] * 3, seed=np.int64(7))
    others = [sampled(model, [[4]] * 3, seed=seed) for seed in range(7)]
    assert len({tuple(row) for rows in others for row in rows}) == 21
    # A call with fewer new tokens gives the beginning.
    assert sampled(model, [[4]] * 3, 3, seed=7) == [row[:4] for row in rows]


def test_seeds_beyond_32_bits_differ(model):
    seeds = [1, 2**32 + 1, 2**33 + 1, 2**31, 2**100]
    assert len({str(sampled(model, [[4]] * 3, seed=seed)) for seed in seeds}) == len(seeds)


def test_default_seed_is_keras(model):
    keras.utils.set_random_seed(3)
    first, second = sampled(model), sampled(model)
    assert first != second
    keras.utils.set_random_seed(3)
    assert [sampled(model), sampled(model)] == [first, second]
    keras.utils.set_random_seed(4)
    assert sampled(model) != first


def test_greedy_leaves_the_default_seed_of_numpy_alone(model):
    np.random.seed(3)
    model.generate(PROMPTS, 7)
    value = np.random.random()
    np.random.seed(3)
    assert np.random.random() == value


def test_several_samples(model):
    rows = sampled(model, num_samples=2, seed=1)
    assert [row[: len(prompt)] for row, prompt in zip(rows, np.repeat(np.array(PROMPTS, object), 2), strict=True)] == [
        prompt for prompt in PROMPTS for _ in range(2)
    ]
    assert all(one != other for one, other in zip(rows[::2], rows[1::2], strict=True))
    greedily = lists(model.generate(PROMPTS, 7, num_samples=2))
    assert greedily == [greedy(model, prompt, 7) for prompt in PROMPTS for _ in range(2)]


def test_sequences_have_their_probability(without_xla):
    """12,288 samples of two tokens: right at each step, and the steps and rows independent."""
    model = TableModel(5, seed=3)
    model.draw(3, scale=0.4)
    rows = model.generate([[4, 1]], 2, sampler=Sampler(), num_samples=12_288, seed=5)
    counts = np.zeros((5, 5))
    np.add.at(counts, tuple(np.stack(rows)[:, 2:].T), 1)
    first = np.exp(log_softmax(model.next_logits([4, 1])))
    then = np.stack([np.exp(log_softmax(model.next_logits([4, 1, token]))) for token in range(5)])
    assert_distributed(counts, first[:, None] * then)
    neighbours = np.zeros((5, 5))
    np.add.at(neighbours, (np.stack(rows)[:-1:2, 2], np.stack(rows)[1::2, 2]), 1)
    assert_distributed(neighbours, first[:, None] * first)


# A user's function


def test_function_in_the_place_of_a_sampler(model):
    """Of the ids so far only the first `lengths` are there, in rows of their own."""

    def least_likely_but_the_last(logits, history):
        ops = keras.ops
        assert history.token_ids.shape[0] == history.lengths.shape[0] == logits.shape[0] and logits.shape[1] == V
        last = ops.take_along_axis(history.token_ids, history.lengths[:, None] - 1, axis=1)
        return ops.argmin(ops.where(ops.equal(ops.arange(V), last), 1e9, logits), axis=-1)

    rows = lists(model.generate(PROMPTS, 7, sampler=least_likely_but_the_last))
    for row, prompt in zip(rows, PROMPTS, strict=True):
        tokens = list(prompt)
        for _ in range(7):
            logits = model.next_logits(tokens)
            logits[tokens[-1]] = 1e9
            tokens.append(int(logits.argmin()))
        assert row == tokens


@pytest.mark.parametrize("shape", ["scalar", "(B, 1)", "(B, V)", "(B + 1,)"])
def test_function_of_a_wrong_shape(model, shape):
    def function(logits, history):
        ids = keras.ops.zeros_like(history.lengths)
        return {
            "scalar": ids[0],
            "(B, 1)": ids[:, None],
            "(B, V)": keras.ops.zeros_like(logits),
            "(B + 1,)": keras.ops.concatenate([ids, ids[:1]]),
        }[shape]

    with pytest.raises(ValueError, match=r"shape \(B,\)"):
        model.generate(PROMPTS, 7, sampler=function)


def test_function_of_a_wrong_id(model):
    def function(logits, history):
        wrong = keras.ops.where(history.token_ids[:, 0] == 3, -1, V)
        return keras.ops.where(history.lengths == 7, wrong, 4)

    for prompts, row in ((PROMPTS, r"\[3 9 2 2 7 4 4\]"), (PROMPTS[1:] * 2, r"\[10  4  4  4  4  4  4\]")):
        with pytest.raises(ValueError, match=f"row 0 after 7 tokens.*{row}"):
            model.generate(prompts[:3], 7, sampler=function)
    assert lists(model.generate(PROMPTS, 2, sampler=function)) == [[*prompt, 4, 4] for prompt in PROMPTS]


# NaN


@pytest.mark.parametrize("sampler", ["greedy", Sampler(), BeamSearch(2), lambda logits, history: 0 * history.lengths])
def test_nan(model, sampler):
    """A NaN anywhere in the logits is an error, in whatever row; without a step there are no logits."""
    weight = model.weights[2]
    table = np.array(keras.ops.convert_to_numpy(weight))
    table[3, 7] = np.nan  # read by a row of four tokens
    weight.assign(table)
    with pytest.raises(ValueError, match="row .* after 4 tokens: the model's logits are NaN"):
        model.generate(PROMPTS, 7, sampler=sampler)
    model.generate(PROMPTS[:1] * 3, 0, sampler=sampler)
    assert len(model.generate(PROMPTS[:1] * 3, 5, sampler=sampler)) == 3


# Log-probabilities


@pytest.mark.parametrize("sampler", ["greedy", Sampler(0.7, top_k=6, repetition_penalty=1.3)])
def test_log_probs(model, sampler):
    """They are the model's own, whatever the sampler makes of them."""
    rows, log_probs = model.generate(PROMPTS, 7, sampler=sampler, seed=2, stop_token_ids=4, return_log_probs=3)
    assert len(rows) == len(log_probs) == 3
    for prompt, row, values in zip(PROMPTS, rows, log_probs, strict=True):
        count = len(row) - len(prompt)
        assert set(values) == {"chosen", "top_ids", "top"}
        assert [str(values[name].dtype) for name in ("chosen", "top_ids", "top")] == ["float32", "int32", "float32"]
        assert values["top"].shape == values["top_ids"].shape == (count, 3)
        expected = [log_softmax(model.next_logits(row[:end])) for end in range(len(prompt), len(row))]
        expected = np.reshape(expected, (count, V))
        order = np.argsort(-expected, axis=-1)[:, :3]
        np.testing.assert_array_equal(values["top_ids"], order)
        assert_close(values["top"], np.take_along_axis(expected, order, -1))
        assert_close(values["chosen"], expected[np.arange(count), row[len(prompt) :]])


def test_log_probs_of_nothing(model):
    _, log_probs = model.generate(PROMPTS, 0, return_log_probs=3)
    assert [values["top"].shape for values in log_probs] == [(0, 3)] * 3


# Wrong arguments

WRONG = [
    ({"token_ids": [[1], []]}, "Prompt 1 is empty"),
    ({"token_ids": [[1], [2, V]]}, rf"token_ids\[1\].*from 0 to {V - 1}.*Received: {V} at \[1\]"),
    ({"token_ids": [[-1]]}, "Received: -1"),
    ({"token_ids": [[1.5]]}, "Received: 1.5"),
    ({"token_ids": [1, 2]}, "entry of rank 0"),
    ({"token_ids": [[[1]]]}, "entry of rank 2"),
    ({"token_ids": np.array([1, 2])}, r"shape \(2,\)"),
    ({"token_ids": np.zeros((2, 3, 5), int)}, r"shape \(2, 3, 5\)"),
    ({"token_ids": "text"}, "TextGenerator.*Received: str"),
    ({"token_ids": ["text"]}, "token_ids"),
    ({"token_ids": None}, "Received: NoneType"),
    ({"token_ids": [["1", "2"]]}, "token_ids"),
    *[({"max_new_tokens": value}, f"max_new_tokens={value}") for value in (-1, 2.0, True, None)],
    *[({"num_samples": value}, f"num_samples={value}") for value in (0, -1, 2.0, True)],
    *[({"return_log_probs": value}, f"return_log_probs={value}") for value in (-1, V + 1, 2.0, True)],
    ({"lengths": [1]}, r"shape \(2,\).*Received: .* of shape \(1,\)"),
    ({"lengths": 1}, r"shape \(\)"),
    ({"lengths": [1.0, 1.0]}, "float64"),
    ({"lengths": [True, True]}, "bool"),
    ({"lengths": [1, 3]}, r"lengths\[1\].* from 0 to 2. Received: 3"),
    ({"lengths": [-1, 1]}, r"lengths\[0\].*Received: -1"),
    ({"lengths": [1, 0]}, "Prompt 1 is empty"),
    *[({"seed": value}, "seed") for value in (-1, 1.5, "1", True, [1, -1], [1.0, 2.0], [True, False])],
    ({"seed": [1, 2, 3]}, "one a prompt: 2. Received: 3"),
    ({"seed": []}, "Received: 0"),
    ({"stop_token_ids": V}, f"stop_token_ids.*Received: {V}"),
    ({"stop_token_ids": [1, -1]}, "stop_token_ids.*Received: -1"),
    ({"stop_token_ids": 1.5}, "Received: 1.5"),
    ({"stop_token_ids": [[1]]}, "rank 2"),
    ({"stop_token_ids": "."}, "stop_token_ids"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=str)
def test_wrong_arguments(model, arguments, message):
    with pytest.raises((ValueError, TypeError), match=message):
        model.generate(**{"token_ids": [[1], [2, 3]], "max_new_tokens": 2, **arguments})


# Buckets


@pytest.mark.parametrize(("bucket", "share", "steps"), [(row_bucket, 1 / 2, 2), (length_bucket, 1 / 4, 4)])
def test_buckets(bucket, share, steps):
    numbers = np.arange(1, 4097)
    buckets = np.array([bucket(int(number)) for number in numbers])
    assert (buckets >= numbers).all() and (np.diff(buckets) >= 0).all()
    small = 16 if bucket is length_bucket else 1
    assert ((buckets - numbers) / numbers)[numbers >= small].max() < share
    assert (buckets[numbers <= small] == small).all()
    np.testing.assert_array_equal([bucket(int(number)) for number in buckets], buckets)
    assert len(set(buckets.tolist())) <= steps * 12 + 1  # of each of the 12 doublings from 1 to 4096


# Stream


@pytest.mark.parametrize("arguments", [{}, {"sampler": Sampler(0.9), "seed": 3}, {"stop_token_ids": [2, 6]}], ids=str)
def test_pieces_joined_equal_generate(model, arguments):
    for prompt in PROMPTS:
        pieces = list(model.stream(prompt, 7, **arguments))
        assert all(piece.dtype == "int32" and piece.ndim == 1 and len(piece) for piece in pieces)
        assert [*prompt, *(token for piece in pieces for token in piece.tolist())] == lists(
            model.generate([prompt], 7, **arguments)
        )[0]


def test_stream_comes_in_pieces(model):
    first, *others = model.stream([4], 7)
    assert len(first) == 1 and others


def test_stream_of_nothing(model):
    first = greedy(model, [4], 1)[-1]
    assert list(model.stream([4], 0)) == [] == list(model.stream([4], 7, stop_token_ids=first))


def test_closing_a_stream_frees_its_state(model, monkeypatch):
    references = []
    start_decoding = model.start_decoding

    def start(*args, **kwargs):
        decoding = start_decoding(*args, **kwargs)
        references.append(weakref.ref(decoding))
        return decoding

    monkeypatch.setattr(model, "start_decoding", start)
    stream = model.stream([4], 7)
    next(stream)
    assert references[0]() is not None
    stream.close()
    gc.collect()
    assert references[0]() is None
    assert list(stream) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sampler": BeamSearch(2)}, "BeamSearch.num_beams=2"),
        ({"sampler": "beam"}, "beam"),
        ({"token_ids": []}, "empty"),
        ({"token_ids": [[1, 2]]}, "rank 2"),
        ({"token_ids": [V]}, f"Received: {V}"),
        ({"token_ids": "text"}, "token_ids"),
        ({"max_new_tokens": -1}, "max_new_tokens=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"stop_token_ids": [V]}, "stop_token_ids"),
    ],
    ids=str,
)
def test_wrong_arguments_of_stream(model, arguments, message):
    """The error comes from the call, not from the first piece."""
    with pytest.raises(ValueError, match=message):
        model.stream(**{"token_ids": [1, 2], "max_new_tokens": 2, **arguments})


def test_two_streams_at_once(model):
    one, other = model.stream([4], 7), model.stream([7], 7)
    pieces = {4: [], 7: []}
    for _ in range(7):
        pieces[4] += next(one, np.array([])).tolist()
        pieces[7] += next(other, np.array([])).tolist()
    assert [[first, *new] for first, new in pieces.items()] == [greedy(model, [first], 7) for first in pieces]


def test_decoding_in_parts(model):
    """What streams stand on: any number of tokens at a time, and rows that are ended before their time."""
    expected = [greedy(model, prompt, 7)[len(prompt) :] for prompt in PROMPTS]
    decoding = model.start_decoding(PROMPTS, 7)
    for part, there in ((1, 1), (0, 1), (3, 4), (None, 7), (2, 7)):
        assert not decoding.done or there == 7
        decoding.advance(part)
        assert lists(map(decoding.new_tokens, range(3))) == [row[:there] for row in expected]
    assert decoding.done
    decoding = model.start_decoding(PROMPTS, 7)
    decoding.advance(2)
    decoding.finish(np.array([False, True, False]))
    decoding.advance(3)
    assert lists(map(decoding.new_tokens, range(3))) == [expected[0][:5], expected[1][:2], expected[2][:5]]
    assert not decoding.done
    decoding.finish(np.array([True, False, True]))
    assert decoding.done
    decoding.advance()
    assert lists(map(decoding.row, range(3)))[0] == [*PROMPTS[0], *expected[0][:5]]


# Compilation


@pytest.mark.skipif(BACKEND == "torch", reason="nothing is compiled")
def test_one_loop_for_all_settings():
    """How often `call_with_cache` runs as Python: never after the first call of a bucket."""
    model = TableModel(V)
    model.generate([[1, 2], [3]], 7)
    once = model.traces
    assert once > 0
    samplers = ["greedy", Sampler(), Sampler(temperature=0.3, top_k=2), Sampler(top_p=0.5, min_p=0.1), Sampler(top_k=V)]
    for number, sampler in enumerate((*samplers, Sampler(repetition_penalty=1.5))):
        prompt = [number] * (number + 1)
        for seed in (None, 0, 2**40, [5, 6]):
            model.generate([prompt, [2, 4]], 6 - number, sampler=sampler, seed=seed, stop_token_ids=[number, 2])
        model.draw(number)
    assert model.traces == once
    model.generate([[1, 2]], 7)
    alone = model.traces
    assert alone > once
    list(model.stream([4, 2], 7, sampler=Sampler(), seed=3))
    list(model.stream([4, 2, 5], 5, stop_token_ids=3))
    assert model.traces == alone


def test_other_values_of_the_weights_are_seen(model):
    for seed in (1, 2, 1):
        model.draw(seed)
        assert lists(model.generate(PROMPTS, 7)) == [greedy(model, prompt, 7) for prompt in PROMPTS]


def test_other_weights_are_seen(without_xla):
    """Other variables in the place of those that were there, as LoRA and quantization put them."""
    changing, other = TableModel(V), TableModel(V, seed=9)
    expected = [greedy(other, prompt, 7) for prompt in PROMPTS]
    assert lists(changing.generate(PROMPTS, 7)) != expected
    changing.weights = other.weights
    assert lists(changing.generate(PROMPTS, 7)) == expected
