"""What the tests of the models that read a source share: answers, scores, wrong inputs, and strings to turn round."""

import keras
import numpy as np
import pytest

from keras_lt import TextGenerator
from keras_lt.generation import BeamSearch, Sampler
from keras_lt.tokenizers import CharTokenizer
from model_testing import FAST_MODE, MARKS, log_softmax, random_ids, uncached_logits
from testing import assert_close, run

START, END = MARKS.values()
# The marks are characters: \0 is padding, \2 begins a target, \3 ends it.
LETTERS = CharTokenizer("\0\2\3abcdefgh")
REVERSING = {"vocabulary_size": LETTERS.vocabulary_size, "start_token_id": 1, "end_token_id": 2}


def rows_of(model, *lengths):
    """Sequences of ids, none of them 0."""
    ids = random_ids(90, vocabulary_size=model.vocabulary_size)
    return [ids[11 * n : 11 * n + length] for n, length in enumerate(lengths)]


def log_probs_of(model, source, answers):
    """The log-probabilities of the tokens of answers to one source, `(B, T)`, by plain calls without a cache."""
    targets = np.pad(answers, ((0, 0), (1, 0)), constant_values=START)[:, :-1]
    logits = run(FAST_MODE, model, {"source": np.tile(source, (len(answers), 1)), "target": targets})
    return np.take_along_axis(log_softmax(logits), np.array(answers)[..., None], axis=2)[..., 0]


def check_answers(model, sources, monkeypatch, tolerance=1e-5):
    """Answers begin with the start token, which is not in them, and end before the end token."""
    inputs, settings = {"source": sources}, {"stop_token_ids": []}
    answers = model.generate(inputs, 9, **settings)
    assert [len(answer) for answer in answers] == [9] * len(sources)
    begun = model.generate({**inputs, "target": [[START]] * len(sources)}, 9, **settings)
    for answer, row in zip(answers, begun, strict=True):
        np.testing.assert_array_equal(row, [START, *answer])
    one = {"source": sources[1]}
    np.testing.assert_array_equal(np.concatenate(list(model.stream(one, 9, **settings))), answers[1])

    stop = int(answers[1][4])
    ends = [[*answer, stop].index(stop) for answer in answers.copy() for answer in [answer.tolist()]]
    for ended in (model.generate(inputs, 9, stop_token_ids=stop), _by_end_token(model, inputs, stop, monkeypatch)):
        for answer, row, end in zip(answers, ended, ends, strict=True):
            np.testing.assert_array_equal(row, answer[:end])

    # Samples and beams of each source are its own.
    settings |= {"num_samples": 2, "return_log_probs": 1}
    samples, of_samples = model.generate(inputs, 9, Sampler(), seed=3, **settings)
    beams, of_beams = model.generate(inputs, 9, BeamSearch(num_beams=2), **settings)
    gains = []
    for number, source in enumerate(sources):
        two = slice(2 * number, 2 * number + 2)
        expected = log_probs_of(model, source, [*samples[two], *beams[two], answers[number]])
        found = [log_probs["chosen"] for log_probs in (*of_samples[two], *of_beams[two])]
        assert_close(np.stack(found), expected[:4], tolerance)
        _, _, best, second, greedy = expected.sum(axis=1)
        assert best >= second and not np.array_equal(*beams[two])
        gains.append(best - greedy)
    assert max(gains) > -tolerance


def _by_end_token(model, inputs, stop, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(model, "end_token_id", stop)
        return model.generate(inputs, 9)


def check_score(model, sources, targets, tolerance=1e-5):
    """The sum over all tokens of a target but the first, in either order, as plain calls on each pair give it."""
    expected = [
        log_softmax(uncached_logits(model, target[:-1], source))[range(len(target) - 1), target[1:]].sum()
        for source, target in zip(sources, targets, strict=True)
    ]
    for step in (1, -1):
        scores = model.score({"source": sources[::step], "target": targets[::step]})
        assert_close(scores["log_likelihood"], np.array(expected)[::step], tolerance)
        assert scores["token_counts"].tolist() == [len(target) - 1 for target in targets][::step]


def check_padding(plain, zero, sides, tolerance=1e-5):
    """Padding of the source on the sides, or of the target on the right, changes no real token; by mask, or by id 0."""
    source, target = random_ids(3, 5, vocabulary_size=11), random_ids(4, 3, vocabulary_size=11).T
    places = {"right": [0, 1, 2, 3, 4], "left": [3, 4, 5, 6, 7], "inside": [1, 2, 4, 6, 7]}
    rows, masks = {}, {}
    for side in sides:
        masks[side] = np.isin(np.arange(8), places[side])[None].repeat(3, axis=0)
        rows[side] = np.full((3, 8), 8, "int32")
        rows[side][:, places[side]] = source
    longer = np.concatenate([target, np.full((3, 2), 7, "int32")], axis=1)
    real = np.arange(6)[None].repeat(3, axis=0) < 4

    def call(source, target, rows, masks, longer, real):
        where = keras.ops.where
        return plain({"source": source, "target": target}), {
            side: [
                plain({"source": x, "target": target, "source_padding_mask": masks[side]}),
                zero({"source": where(masks[side], x, 0), "target": target}),
                plain({"source": source, "target": longer, "target_padding_mask": real}),
                zero({"source": where(masks[side], x, 0), "target": where(real, longer, 0)}),
            ]
            for side, x in rows.items()
        }

    expected, found = run(FAST_MODE, call, source, target, rows, masks, longer, real)
    for logits in found.values():
        for one in logits:
            assert_close(one[:, :4], expected, tolerance)


def check_prompts_without_padding(model, sources):
    """Arrays with zeros behind, masks, lists: the same sources, the same answers."""
    width = max(map(len, sources))
    padded = np.stack([np.pad(source, (0, width - len(source))) for source in sources])
    mask = padded != 0
    expected = model.generate({"source": sources}, 5, stop_token_ids=[])
    noise = np.where(mask, padded, 3)
    for inputs in ({"source": padded}, {"source": noise, "source_padding_mask": mask}):
        for row, answer in zip(model.generate(inputs, 5, stop_token_ids=[]), expected, strict=True):
            np.testing.assert_array_equal(row, answer)
    targets = np.array([[START, 4, 0, 0]] * len(sources))
    for row in model.generate({"source": padded, "target": targets}, 5, stop_token_ids=[]):
        assert row[:2].tolist() == [START, 4] and len(row) == 7
    with pytest.raises(ValueError, match="Source 1 is empty"):
        model.generate({"source": np.array([[1, 2], [0, 0]])}, 5)


def check_wrong_inputs(model):
    size = model.vocabulary_size
    source, target = random_ids(2, 7, vocabulary_size=11), random_ids(2, 3, vocabulary_size=11)
    good = {"source": source, "target": target}
    for inputs in (source, [source, target], {"source": source}, {"target": target}, {**good, "mask": source > 0}):
        with pytest.raises(ValueError, match="a dictionary with the keys .*'source', 'target'.*Received: "):
            model(inputs)
    for name in good:
        for bad in (good[name][0], good[name][..., None], None):
            with pytest.raises(ValueError, match=rf"`{name}` must have the shape \(B, T\)"):
                model({**good, name: bad})
        with pytest.raises(ValueError, match=rf"`{name}_padding_mask` must have the shape"):
            model({**good, f"{name}_padding_mask": np.ones((2, 6), "bool")})
        wrong = good[name].copy()
        wrong[1, 2] = size
        with pytest.raises(ValueError, match=rf"(?s){size} at \[1, 2\]"):
            model({**good, name: wrong})
    with pytest.raises(ValueError, match=r"`target` must have the shape \(2, None\)"):
        model({"source": source, "target": target[:1]})
    with pytest.raises(ValueError, match="reads a source: pass `source` to `build_cache`"):
        model.build_cache(2, 5)
    with pytest.raises(ValueError, match=r'source\["token_ids"\]` must have the shape'):
        model.build_cache(2, 5, source=source[0])


WRONG_PROMPTS = [
    ([[1, 2]], 'takes a dictionary of "source".*Received: list'),
    ({"target": [[9]]}, r"Received: the keys \('target',\)"),
    ({"source": [[1]], "prompt": [[9]]}, r"Received: the keys \('source', 'prompt'\)"),
    ({"source": [[1, 2], []]}, "Source 1 is empty: there is nothing to read"),
    ({"source": [[1, 2], [3]], "target": [[9]]}, "a target for each source. Received: 2, 1"),
    ({"source": [[1, 2], [3]], "target": [[9], []]}, "Prompt 1 is empty"),
    ({"source": [[1, 2], [3, 99]]}, r"`source\[1\]` must be whole numbers from 0 to .*Received: 99 at \[1\]"),
    ({"source": [[1]], "target": [[-1]]}, r"`target\[0\]` must be whole numbers from 0 to .*Received: -1 at \[0\]"),
    ({"source": [1, 2]}, "`source` must be a list of sequences"),
]


def check_wrong_prompts(model):
    for inputs, message in WRONG_PROMPTS:
        with pytest.raises(ValueError, match=message):
            model.generate(inputs, 3)
    with pytest.raises(ValueError, match="`lengths` are of the targets"):
        model.generate({"source": [[1]]}, 3, lengths=[1])
    with pytest.raises(TypeError, match="`source` must be a list of sequences of ids.*TextGenerator. Received: str"):
        model.generate({"source": "abc"}, 3)
    with pytest.raises(ValueError, match='To score, pass targets beside the sources. Received: no "target"'):
        model.score({"source": [[1, 2]]})
    with pytest.raises(ValueError, match='takes a dictionary of "source".*Received: ndarray'):
        model.score(np.ones((2, 3), "int32"))
    assert model.generate({"source": []}, 3) == []


def check_wrong_marks(model_class, **arguments):
    for marks, message in (
        ({"start_token_id": -1}, "`start_token_id` must be an integer, from 0 to 10. Received: start_token_id=-1"),
        ({"end_token_id": 11}, "`end_token_id` must be an integer, from 0 to 10. Received: end_token_id=11"),
        ({"end_token_id": 1.5}, "`end_token_id` must be an integer"),
        ({"start_token_id": 0, "mask_zero": True}, "`start_token_id` must be an integer, from 1 to 10"),
    ):
        with pytest.raises(ValueError, match=message):
            model_class(**{"vocabulary_size": 11, **MARKS, **arguments, **marks})


def reversed_strings(number, seed=0):
    """Sources of 4 letters as arrays of ids, the targets that the decoder reads, and what it is to say."""
    letters = np.random.default_rng(seed).integers(3, LETTERS.vocabulary_size, (number, 4)).astype("int32")
    target = np.pad(letters[:, ::-1], ((0, 0), (1, 0)), constant_values=1)
    return letters, target, np.pad(letters[:, ::-1], ((0, 0), (0, 1)), constant_values=2)


def check_reverses(model, epochs, jit_compile):
    """Trained on 4-letter strings turned round, it turns round those it has not seen, to the letter.

    A few may be wrong, as weights and rounding have it; who guesses is right once in thousands of times.
    """
    source, target, y = reversed_strings(512)
    model.compile(keras.optimizers.Adam(0.01), jit_compile=jit_compile)
    model.fit({"source": source, "target": target}, y, batch_size=64, epochs=epochs, verbose=0)
    seen = set(map(bytes, source))
    unseen = [row for row in reversed_strings(80, seed=1)[0] if bytes(row) not in seen]
    texts = [LETTERS.decode(row) for row in unseen]
    answers = TextGenerator(model, LETTERS).generate(texts, max_new_tokens=6)
    right = np.mean([answer == text[::-1] for answer, text in zip(answers, texts, strict=True)])
    assert right >= 0.9, right
