"""RecurrentSeq2Seq against NumPy written from S2's equations, with attention and without; decoding, padding, files."""

import keras
import numpy as np
import pytest

from keras_lt import TextGenerator
from keras_lt.layers import CrossAttention
from keras_lt.layers.recurrent_stack import RecurrentStack
from keras_lt.models import RecurrentSeq2Seq
from model_equations import attention, embed, head, run_stack
from model_testing import (
    FAST_MODE,
    MARKS,
    check_cache,
    check_generation,
    check_reload,
    exported,
    random_ids,
    recurrent,
    without_initializers,
)
from seq2seq_testing import (
    LETTERS,
    REVERSING,
    check_answers,
    check_padding,
    check_prompts_without_padding,
    check_reverses,
    check_score,
    check_wrong_inputs,
    check_wrong_marks,
    check_wrong_prompts,
    reversed_strings,
    rows_of,
)
from testing import BACKEND, MODES, assert_close, needs_tensorflow, run, to_numpy, weight_gradient

# XLA takes longer to compile a training step than these tests to run it.
JIT = False if BACKEND == "tensorflow" else "auto"
CELLS = ("rnn", "lstm", "gru")
V, D = 11, 6
# One option each, at a value that is not the default.
OPTIONS = {
    "vocabulary_size": 29,
    "start_token_id": 4,
    "end_token_id": 5,
    "cell": "lstm",
    "attention": False,
    "num_layers": 3,
    "hidden_dim": 24,
    "activation": "sigmoid",
    "tie_embeddings": True,
    "dropout": 0.3,
    "mask_zero": True,
    "embeddings_initializer": keras.initializers.RandomNormal(stddev=0.3, seed=5),
    "kernel_initializer": keras.initializers.HeNormal(seed=3),
    "recurrent_initializer": "glorot_normal",
    "bias_initializer": "ones",
    "seed": 7,
}
every_cell = pytest.mark.parametrize("cell", CELLS)
every_form = pytest.mark.parametrize("attends", [True, False], ids=["attention", "state"])


def seq2seq(cell="gru", **arguments):
    return recurrent(cell, model_class=RecurrentSeq2Seq, **arguments)


@pytest.fixture(scope="module")
def models():
    """Of each cell one that looks at the source and one that does not, for tests that change nothing."""
    return {(cell, attends): seq2seq(cell, attention=attends) for cell in CELLS for attends in (True, False)}


def pair(num_rows=3, source_length=7, target_length=5):
    ids = random_ids(num_rows, source_length + target_length, vocabulary_size=V)
    return {"source": ids[:, :source_length], "target": ids[:, source_length:]}


def forward(model, source, target, phi="tanh"):
    """The logits of one target and what was looked at, `alpha` (1, T, S), in float64."""
    encoded, states = run_stack(model.encoder, embed(model.embedding, source), phi=phi)
    x, _ = run_stack(model.decoder, embed(model.embedding, target), states, phi=phi)
    alpha = None
    if model.attention:
        # One head: Q = w_1 h_t, K = w_2 e_i, alpha = softmax(Q K / sqrt(d_k)), C_t = alpha V.
        context, alpha = attention(x, encoded, model.cross_attention)
        combine = [to_numpy(weight).astype("float64") for weight in (model.combine.kernel, model.combine.bias)]
        x = np.tanh(np.concatenate([x, context], axis=-1) @ combine[0] + combine[1])
    return head(x, model), alpha


def check_forward(mode, model, phi="tanh"):
    inputs = pair()
    expected = [forward(model, *row, phi) for row in zip(*inputs.values(), strict=True)]
    assert np.std([logits for logits, _ in expected]) > 0.3
    if not model.attention:
        assert_close(run(mode, model, inputs), np.stack([logits for logits, _ in expected]), 1e-5)
        return
    logits, scores = run(mode, lambda inputs: model(inputs, return_attention_scores=True), inputs)
    assert_close(logits, np.stack([logits for logits, _ in expected]), 1e-5)
    assert list(scores) == ["cross"] and len(scores["cross"]) == 1
    assert_close(scores["cross"][0], np.stack([alpha for _, alpha in expected]), 1e-5)
    assert_close(scores["cross"][0].sum(-1), np.ones((3, 1, 5)))


# S2's equations


@every_cell
@every_form
def test_equals_s2(models, cell, attends):
    for mode in MODES if cell == "gru" and attends else [FAST_MODE]:
        check_forward(mode, models[cell, attends])


@pytest.mark.parametrize("phi", ["relu", "sigmoid"])
def test_other_phi_of_s2(phi):
    check_forward(FAST_MODE, seq2seq("rnn", activation=phi, num_layers=1), phi)


@every_form
def test_tied_head_is_the_table(attends):
    check_forward(FAST_MODE, seq2seq("lstm", tie_embeddings=True, num_layers=1, attention=attends))


@every_form
def test_number_of_parameters(attends):
    # table, encoder and decoder of 2 layers of 3 gates, head; query, key, value, output, combine
    model = RecurrentSeq2Seq(30, 28, 29, num_layers=2, hidden_dim=8, attention=attends)
    looking = 4 * 8 * 8 + 2 * 8 * 8 + 8
    assert model.count_params() == 30 * 8 + 2 * 2 * 3 * (2 * 8 * 8 + 8) + 8 * 30 + 30 + (looking if attends else 0)


def test_every_weight_is_its_own():
    """A seeded initializer starts no two kernels of one shape with the same numbers."""
    seeded = keras.initializers.RandomNormal(seed=3)
    model = RecurrentSeq2Seq(V, **MARKS, cell="rnn", num_layers=2, hidden_dim=D, kernel_initializer=seeded)
    kernels = [to_numpy(weight) for weight in model.weights if weight.path.endswith("/kernel")]
    assert len(kernels) == 4 + 3 + 1 + 1
    for number, kernel in enumerate(kernels):
        for other in kernels[number + 1 :]:
            assert kernel.shape != other.shape or np.abs(kernel - other).max() > 0.01


# Decoding


@pytest.mark.parametrize(
    ("cell", "arguments"),
    [
        ("rnn", {"attention": True, "mask_zero": True, "num_layers": 1}),
        ("lstm", {"attention": False, "tie_embeddings": True}),
        ("gru", {"attention": True}),
    ],
)
def test_generation_equals_plain_calls(cell, arguments):
    model = seq2seq(cell, scale=1.2, **arguments)
    assert model.max_sequence_length is None and model.decoding_limit is None
    sources, prompts = rows_of(model, 5, 13, 1), rows_of(model, 1, 8, 15)
    check_generation(model, prompts, max_new_tokens=7, sources=sources)


@every_cell
@every_form
def test_cached_equals_uncached(models, cell, attends):
    """On TensorFlow eagerly: `generate` compiles the same with XLA."""
    check_cache(FAST_MODE, models[cell, attends], random_ids(5, 8, vocabulary_size=V), source=pair(5)["source"])


def test_answers(monkeypatch):
    model = seq2seq("gru", scale=1.2, num_layers=1)
    check_answers(model, rows_of(model, 5, 13, 1), monkeypatch)


@every_form
def test_score(models, attends):
    model = models["lstm", attends]
    check_score(model, rows_of(model, 5, 13, 1), rows_of(model, 16, 4, 1))


def test_padding_in_prompts():
    model = seq2seq(mask_zero=True, num_layers=1)
    check_prompts_without_padding(model, rows_of(model, 5, 13, 1))


def test_source_is_read_once(models, monkeypatch):
    """`build_cache` runs the encoder and makes keys and values of what comes out; no token makes them again."""
    model, ran = models["gru", True], []
    for kind, name in ((CrossAttention, "build_cache"), (RecurrentStack, "call")):
        original = getattr(kind, name)

        def counted(layer, *args, original=original, **kwargs):
            ran.append(layer.name)
            return original(layer, *args, **kwargs)

        monkeypatch.setattr(kind, name, counted)
    cache = model.build_cache(2, None, source=pair(2)["source"])
    assert ran == ["encoder", "cross_attention"]
    for start in range(3):
        _, cache = model.call_with_cache(random_ids(2, 1, vocabulary_size=V), cache, start)
    assert ran == ["encoder", "cross_attention", "decoder", "decoder", "decoder"]


# Padding and wrong inputs


@every_cell
@every_form
def test_padding_changes_nothing(models, cell, attends):
    check_padding(models[cell, attends], seq2seq(cell, attention=attends, mask_zero=True), ["right", "left", "inside"])


def test_padding_is_not_looked_at(models):
    inputs, mask = pair(), np.arange(7) < np.array([[7], [4], [1]])
    call = {**inputs, "source_padding_mask": mask}
    _, scores = run(FAST_MODE, lambda inputs: models["gru", True](inputs, return_attention_scores=True), call)
    (found,) = scores["cross"]
    assert not (found * ~mask[:, None, None]).any()
    assert_close(found.sum(-1), np.ones((3, 1, 5)))


def test_wrong_inputs(models):
    model = models["lstm", False]
    check_wrong_inputs(model)
    check_wrong_prompts(model)
    symbolic = {name: keras.Input((None,), dtype="int32") for name in ("source", "target")}
    for inputs in (pair(), symbolic):
        with pytest.raises(ValueError, match="looks at nothing: it has attention=False"):
            model(inputs, return_attention_scores=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("cell", "transformer"), ("num_layers", 0), ("hidden_dim", 2.5), ("dropout", 1), ("activation", "swirl")],
)
def test_wrong_arguments(name, value):
    with pytest.raises(ValueError, match=f"{name}.*{value}|{value}"):
        RecurrentSeq2Seq(V, **MARKS, **{name: value})


def test_wrong_marks():
    check_wrong_marks(RecurrentSeq2Seq, hidden_dim=D)


def test_shapes(models):
    for model in (models["lstm", True], models["gru", False]):
        for num_rows, source_length, length in ((1, 1, 1), (0, 7, 5), (2, 3, 0), (2, 0, 3)):
            logits = run(FAST_MODE, model, pair(num_rows, source_length, length))
            assert logits.shape == (num_rows, length, V)
    model = models["lstm", True]
    assert model.predict(pair(7), batch_size=3, verbose=0).shape == (7, 5, V)
    symbolic = {name: keras.Input((length,), dtype="int32") for name, length in (("source", 7), ("target", None))}
    outputs, scores = model(symbolic, return_attention_scores=True)
    assert outputs.shape == (None, None, V) and model(symbolic, return_features=True).shape == (None, None, D)
    assert [score.shape for score in scores["cross"]] == [(None, 1, None, 7)]


# Files, policies, formats


def test_config_holds_every_option():
    with without_initializers():
        default = RecurrentSeq2Seq(23, 1, 2).get_config()
        config = RecurrentSeq2Seq(**OPTIONS).get_config()
        again = RecurrentSeq2Seq.from_config(config).get_config()
    assert set(OPTIONS) == set(default) - {"name", "trainable", "dtype"} and again == config
    for name in OPTIONS:
        assert config[name] != default[name], name


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_saves_and_loads_in_a_fresh_process(tmp_path):
    options = {name: value for name, value in OPTIONS.items() if not name.endswith("initializer")}
    models = {"options": seq2seq(**options, dtype="mixed_bfloat16" if BACKEND == "tensorflow" else None)}
    if BACKEND == "tensorflow":  # seconds a model elsewhere
        models["int8"] = seq2seq(num_layers=1)
        models["int8"].quantize("int8")
    inputs = pair()
    inputs["source"][1, 5:] = inputs["target"][2, 3:] = 0
    generator = TextGenerator(seq2seq(num_layers=1, mask_zero=True, **REVERSING), LETTERS)
    check_reload(tmp_path, models, inputs, generator, ["abc", "hgfedcba"])


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_near(models, policy):
    """The whole and in pieces; what the decoding keeps is in half precision, too."""
    model, inputs = seq2seq(dtype=policy), pair()
    exact = np.stack([forward(models["gru", True], *row)[0] for row in zip(*inputs.values(), strict=True)])

    def call(inputs):
        cache = model.build_cache(3, 5, source=inputs["source"])
        first, after = model.call_with_cache(inputs["target"][:, :3], cache, 0)
        return cache, model(inputs), [first, model.call_with_cache(inputs["target"][:, 3:], after, 3)[0]]

    cache, whole, pieces = run(FAST_MODE, call, inputs)
    assert {x.dtype.name for x in keras.tree.flatten(cache)} == {policy.removeprefix("mixed_")}
    # 11 and 8 bits of mantissa, at 12 steps of two layers.
    tolerance = (0.01 if policy == "mixed_float16" else 0.06) * np.linalg.norm(exact)
    assert 0 < np.linalg.norm(whole.astype("float64") - exact) < tolerance
    assert np.linalg.norm(np.concatenate(pieces, axis=1).astype("float64") - exact) < tolerance


@needs_tensorflow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_exports(models, tmp_path):
    """With two named inputs, for other batch sizes and lengths than any that the export saw, which saw none."""
    model = models["gru", True]
    for name in ("tf_saved_model", "onnx"):
        logits = exported(model, name, tmp_path)
        for shape in ((1, 1, 1), (7, 4, 2), (2, 5, 9)):
            inputs = pair(*shape)
            assert_close(logits(**inputs), to_numpy(model(inputs)), 1e-5)
    for name in ("openvino", "litert"):
        with pytest.raises(ValueError, match="does not carry recurrent layers"):
            model.export(str(tmp_path / "refused"), format=name)


# Training


def test_reverses_strings():
    keras.utils.set_random_seed(0)
    model = RecurrentSeq2Seq(**REVERSING, hidden_dim=48)
    check_reverses(model, epochs=25, jit_compile=JIT)


@needs_tensorflow
def test_xla_trains_the_same():
    source, target, y = reversed_strings(8)
    source[1, 2:] = target[2, 3:] = y[2, 3:] = 0
    losses = []
    for jit_compile in (True, False):
        model = seq2seq("lstm", num_layers=1, mask_zero=True)
        model.compile(keras.optimizers.SGD(0.3), jit_compile=jit_compile)
        losses.append(model.fit({"source": source, "target": target}, y, epochs=3, verbose=0).history["loss"])
    assert_close(*losses, 1e-5)
    assert losses[0][-1] < losses[0][0] - 0.01


@every_form
def test_gradient_reaches_all_weights(models, attends):
    model = models["lstm", attends]
    gradients = weight_gradient(FAST_MODE, model, lambda inputs: model(inputs) ** 2, pair())
    for weight, values in zip(model.trainable_variables, gradients, strict=True):
        assert np.isfinite(values).all() and np.abs(values).max() > 0, weight.path


def test_dropout_acts_in_training_only_and_by_its_seed(models):
    one, other, different = (seq2seq(dropout=0.5, seed=seed) for seed in (1, 1, 2))

    def both(inputs):
        return [model(inputs, training=True) for model in (one, other, different)], one(inputs)

    (first, again, third), plain = run(FAST_MODE, both, pair())
    assert_close(plain, run(FAST_MODE, models["gru", True], pair()))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - third).max() > 0.1 and np.abs(first - plain).max() > 0.1
    seeds = [layer.seed for stack in (one.encoder, one.decoder) for layer in stack.dropout_layers]
    assert len(seeds) == len(set(seeds)) == 6
