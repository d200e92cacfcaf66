"""RecurrentLM against NumPy written from S2's equations, the laws of decoding, padding, files and training."""

import keras
import numpy as np
import pytest

from keras_lt import TextGenerator
from keras_lt.models import RecurrentLM
from keras_lt.optimizers import SmoothedRMS
from keras_lt.tokenizers import CharTokenizer
from model_equations import embed, head, run_stack
from model_testing import FAST_MODE, check_cache, check_generation, exported, log_softmax, random_ids, recurrent
from testing import (
    BACKEND,
    MODES,
    assert_close,
    fresh_process,
    needs_tensorflow,
    run,
    to_numpy,
    weight_gradient,
)

# XLA takes longer to compile a training step than these tests to run it.
JIT = False if BACKEND == "tensorflow" else "auto"
CELLS = ("rnn", "lstm", "gru")
V, D = 11, 6
# One option each, at a value that is not the default.
OPTIONS = {
    "vocabulary_size": 29,
    "cell": "gru",
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


@pytest.fixture(scope="module")
def models():
    """One of each cell, for tests that change nothing."""
    return {cell: recurrent(cell) for cell in CELLS}


def ids_of(*shape):
    return random_ids(*shape, vocabulary_size=V)


# S2's equations


def forward(model, ids, phi="tanh"):
    """The logits of one sequence in float64."""
    outputs, _ = run_stack(model.recurrent_stack, embed(model.embedding, ids), phi=phi)
    return head(outputs, model)


def check_forward(mode, model, phi="tanh"):
    ids = ids_of(3, 7)
    expected = np.stack([forward(model, row, phi) for row in ids])
    assert np.std(expected) > 0.3
    assert_close(run(mode, model, ids), expected, 1e-5)


@every_cell
@pytest.mark.parametrize("mode", MODES)
def test_equals_s2(models, cell, mode):
    check_forward(mode, models[cell])


@pytest.mark.parametrize("phi", ["relu", "sigmoid"])
def test_other_phi_of_s2(phi):
    check_forward(FAST_MODE, recurrent("rnn", activation=phi), phi)


@every_cell
def test_tied_head_is_the_table(cell):
    model = recurrent(cell, tie_embeddings=True, num_layers=1)
    check_forward(FAST_MODE, model)
    gates = {"rnn": 1, "lstm": 4, "gru": 3}[cell]
    assert model.count_params() == V * D + gates * (D * D + D * D + D)


def test_number_of_parameters():
    # table, two layers of four gates, head
    assert RecurrentLM(65, "lstm", 2, 32).count_params() == 65 * 32 + 2 * 4 * (2 * 32 * 32 + 32) + 32 * 65 + 65


def test_forget_gate_starts_open():
    layer = RecurrentLM(V, "lstm", hidden_dim=D, recurrent_initializer="zeros").recurrent_stack.recurrent_layers[0]
    np.testing.assert_array_equal(to_numpy(layer.cell.bias.value), np.repeat([0, 1, 0, 0], D))


def test_cudnn_is_not_used(models):
    """It refuses padding before the last token, and XLA, which compiles training and decoding, refuses it."""
    assert not any(
        layer.use_cudnn for cell in ("lstm", "gru") for layer in models[cell].recurrent_stack.recurrent_layers
    )


# Decoding


@every_cell
def test_cached_equals_uncached(models, cell):
    """Pieces of unequal lengths, single tokens, several at once; later tokens change nothing before.

    On TensorFlow eagerly: `generate` below compiles the same with XLA.
    """
    check_cache(FAST_MODE, models[cell], ids_of(5, 8))


@every_cell
def test_cached_equals_uncached_with_padding_inside(cell):
    """The logits of padding are those of the token before it, however the sequence is cut; none yet, those of 0."""
    model, ids = recurrent(cell, mask_zero=True, tie_embeddings=True, num_layers=1), ids_of(4, 8)
    ids[0, [0, 3, 4, 6]] = ids[1, :4] = ids[2, 2:] = 0

    def pieces(ids, *sizes):
        cache, start, logits = model.build_cache(len(ids), None), 0, []
        for size in sizes:
            found, cache = model.call_with_cache(ids[:, start : start + size], cache, start)
            logits.append(found)
            start += size
        return keras.ops.concatenate(logits, axis=1)

    cuts = ((8,), (1,) * 8, (4, 4), (3, 1, 2, 2))
    whole, *found = run(FAST_MODE, lambda ids: [model(ids), *(pieces(ids, *sizes) for sizes in cuts)], ids)
    for logits in found:
        assert_close(logits, whole)
    np.testing.assert_array_equal(whole[0, 0], np.zeros(V))
    assert_close(whole[2, 2:], np.repeat(whole[2, 1:2], 6, axis=0))


def test_what_stands_behind_the_lengths_is_not_read(models):
    """Not even checked: it is no id."""
    model, lengths, ids = models["lstm"], np.array([2, 0, 3], "int32"), ids_of(3, 3)

    def cache_after(ids):
        return model.call_with_cache(ids, model.build_cache(3, None), 0, lengths=lengths)[1]

    behind = np.arange(3) >= lengths[:, None]
    one, other = (run(FAST_MODE, cache_after, np.where(behind, bad, ids)) for bad in (V, 1))
    assert_close(one, other, 0)
    assert not np.any(one["states"][0][0][1]) and np.all(one["states"][0][0][0])


@pytest.mark.parametrize(
    ("cell", "arguments"),
    [("rnn", {"mask_zero": True}), ("lstm", {"tie_embeddings": True}), ("gru", {"num_layers": 1, "mask_zero": True})],
)
def test_generation_equals_plain_calls(cell, arguments):
    """Prompts of unequal lengths, in either order, one with padding inside and at its end."""
    model, ids = recurrent(cell, scale=1.2, **arguments), ids_of(60)
    assert model.max_sequence_length is None and model.decoding_limit is None
    prompts = [ids[7 * n : 7 * n + m] for n, m in enumerate((3, 1, 21, 11))]
    if model.mask_zero:
        prompts[3][[0, 5, 6, 10]] = 0
    check_generation(model, prompts, max_new_tokens=9)


def test_stream_and_score(models):
    model, prompt = models["lstm"], ids_of(5)
    (row,) = model.generate([prompt], 9)
    np.testing.assert_array_equal(np.concatenate(list(model.stream(prompt, 9))), row[5:])
    rows = [row, ids_of(4), ids_of(1)]
    scores = model.score(rows)
    logits = [log_softmax(forward(model, row[:-1]))[range(len(row) - 1), row[1:]] for row in rows[:2]]
    assert_close(scores["log_likelihood"], np.array([logits[0].sum(), logits[1].sum(), 0.0]), 1e-5)
    assert scores["token_counts"].tolist() == [13, 3, 0]


@needs_tensorflow
def test_saved_model(tmp_path):
    """Of the cell with two states, with padding; what Python gives, for every batch size and length."""
    import tensorflow as tf

    from keras_lt.serving import export_saved_model

    model = recurrent("lstm", mask_zero=True)
    served = tf.saved_model.load(export_saved_model(model, tmp_path)).signatures
    ids = ids_of(3, 7)
    ids[1, 5:] = ids[2, :3] = 0
    for part in (ids, ids[:2, :1], ids[:0]):
        assert_close(served["serving_default"](token_ids=tf.constant(part))["logits"], model(part))
    settings = {"max_new_tokens": 9, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0}
    found = served["generate_ids"](
        token_ids=tf.constant(ids),
        prompt_lengths=tf.constant([7, 5, 7]),
        **{name: tf.constant(value) for name, value in settings.items()},
    )
    for length, row, expected in zip(found["lengths"], found["token_ids"], model.generate(ids, 9), strict=True):
        np.testing.assert_array_equal(row[:length], expected)


# Padding and wrong inputs


@every_cell
def test_padding_changes_nothing(models, cell):
    """Right, left and inside, said by a mask, whatever id stands there, or by id 0."""
    plain, zero = models[cell], recurrent(cell, mask_zero=True)
    ids = ids_of(3, 5)
    places = {"right": [0, 1, 2, 3, 4], "left": [4, 5, 6, 7, 8], "inside": [1, 2, 4, 7, 8]}
    masks = {side: np.isin(np.arange(9), place)[None].repeat(3, axis=0) for side, place in places.items()}
    padded = {side: np.full((3, 9), 8, "int32") for side in places}
    for side, place in places.items():
        padded[side][:, place] = ids

    def logits(ids, padded, masks):
        return plain(ids), {
            side: (plain({"token_ids": x, "padding_mask": masks[side]}), zero(keras.ops.where(masks[side], x, 0)))
            for side, x in padded.items()
        }

    expected, found = run(FAST_MODE, logits, ids, padded, masks)
    for side, (masked, zeros) in found.items():
        assert_close(masked[:, places[side]], expected)
        assert_close(zeros, masked)


@every_cell
def test_appended_padding_changes_neither_loss_nor_gradient(cell):
    model = recurrent(cell, mask_zero=True, num_layers=1)
    model.compile(keras.optimizers.SGD(), jit_compile=JIT)
    x, y = ids_of(3, 5), ids_of(5, 3).T
    x[2, 3:] = y[2, 3:] = 0
    results = []
    for width in (0, 4):
        wide = [np.pad(ids, ((0, 0), (0, width))) for ids in (x, y)]

        def loss(x, y):
            return model.compute_loss(x, y, model(x))

        results.append((run(FAST_MODE, loss, *wide), weight_gradient(FAST_MODE, model, loss, *wide)))
    assert_close(*results)
    expected = [
        -log_softmax(forward(model, one[:n]))[range(n), two[:n]] for one, two, n in zip(x, y, (5, 5, 3), strict=True)
    ]
    assert_close(results[0][0], np.concatenate(expected).mean(), 1e-5)
    for values, weight in zip(results[0][1], model.trainable_variables, strict=True):
        assert np.abs(values).max() > 0, weight.path


@pytest.mark.parametrize("bad", [-1, V])
@pytest.mark.parametrize("mode", MODES)
def test_wrong_id(models, mode, bad):
    model, ids = models["gru"], ids_of(3, 7)
    ids[1, 4] = bad
    if mode == "eager":
        with pytest.raises(ValueError, match=rf"(?s){bad} at \[1, 4\]"):
            model(ids)
        with pytest.raises(ValueError, match="vocabulary_size"):
            model.call_with_cache(ids[:, 4:5], model.build_cache(3, 7), 4)
    else:
        logits = run(mode, model, ids)
        assert np.isnan(logits[1, 4:]).all() and np.isfinite(logits[1, :4]).all()
        assert np.isfinite(logits[[0, 2]]).all()


def test_wrong_inputs(models):
    model, ids = models["lstm"], ids_of(2, 7)
    for inputs in (ids[0], ids[..., None], {"token_ids": None}):
        with pytest.raises(ValueError, match=r"\(B, T\)"):
            model(inputs)
    for inputs in ({"token_ids": ids, "segment_ids": ids}, {"padding_mask": ids > 0}):
        with pytest.raises(ValueError, match="token_ids.*padding_mask"):
            model(inputs)
    for shape in ((2, 6), (1, 7), (2, 7, 1)):
        with pytest.raises(ValueError, match=r"(?s)`padding_mask`.*\(2, 7\)"):
            model({"token_ids": ids, "padding_mask": np.ones(shape, "bool")})
    with pytest.raises(ValueError, match="lengths"):
        model.call_with_cache(ids, model.build_cache(2, 7), 0, lengths=np.array([1, 2, 2]))
    with pytest.raises(ValueError, match=r"\(B, T\)"):
        model.call_with_cache(ids[0], model.build_cache(2, 7), 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cell", "transformer"),
        ("vocabulary_size", 0),
        ("num_layers", 0),
        ("hidden_dim", 0),
        ("hidden_dim", 2.5),
        ("dropout", 1),
        ("dropout", -0.1),
        ("activation", "swirl"),
    ],
)
def test_wrong_arguments(name, value):
    with pytest.raises(ValueError, match=f"{name}.*{value}|{value}"):
        RecurrentLM(**{name: value})


def test_odd_sizes(models):
    model = models["lstm"]
    for shape in ((1, 1), (0, 7), (2, 0)):
        assert tuple(model(ids_of(*shape)).shape) == (*shape, V)
        assert tuple(model(ids_of(*shape), return_features=True).shape) == (*shape, D)
    assert model.predict(ids_of(7, 5), batch_size=3, verbose=0).shape == (7, 5, V)


def test_spec_equals_real_shape(models):
    model = models["gru"]
    assert model(keras.Input((None,), dtype="int32")).shape == (None, None, V)
    assert model(keras.Input((7,), dtype="int32"), return_features=True).shape == (None, 7, D)
    assert model.compute_output_shape((5, 7)) == model.compute_output_shape({"token_ids": (5, 7)}) == (5, 7, V)


# Files, policies, quantization


def test_config_holds_every_option():
    default = RecurrentLM().get_config()
    assert set(OPTIONS) == set(default) - {"name", "trainable", "dtype"}
    model = RecurrentLM(**OPTIONS)
    config = model.get_config()
    assert RecurrentLM.from_config(config).get_config() == config
    for name in OPTIONS:
        assert config[name] != default[name], name
    assert [layer.cell.units for layer in model.recurrent_stack.recurrent_layers] == [24] * 3


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_saves_and_loads_in_a_fresh_process(models, tmp_path):
    """Every option, a policy and quantization: logits; and a `TextGenerator`, whose model generates the same ids."""
    ids = ids_of(2, 7)
    kept = {name: value for name, value in OPTIONS.items() if not name.endswith("initializer")}
    saved = {"options": recurrent(**kept)}
    if BACKEND == "tensorflow":  # seconds a model elsewhere
        saved["policy"] = recurrent("rnn", num_layers=1, dtype="mixed_bfloat16", activation="relu")
        saved["int8"] = recurrent("gru", num_layers=1)
        saved["int8"].quantize("int8")
    for name, model in saved.items():
        model.save(tmp_path / f"{name}.keras")
    saved["generator"] = models["lstm"]
    TextGenerator(models["lstm"], CharTokenizer("abcdefghijk")).save(tmp_path / "generator")
    logits = run(FAST_MODE, lambda ids: {name: model(ids) for name, model in saved.items()}, ids)
    expected = {name: array.astype("float32") for name, array in logits.items()}
    np.savez(tmp_path / "expected.npz", ids=ids, row=models["lstm"].generate([ids_of(5)], 9)[0], **expected)
    output = fresh_process(
        """
        import pathlib, sys
        import keras, numpy as np
        import keras_lt

        folder = pathlib.Path(sys.argv[1])
        expected = dict(np.load(folder / "expected.npz"))
        ids, row = expected.pop("ids"), expected.pop("row")
        for name in expected:
            if name == "generator":
                generator = keras_lt.TextGenerator.load(folder / name)
                model, text = generator.model, generator.tokenizer.decode(row)
                assert generator.generate(text[:5], 9) == text
            else:
                model = keras.saving.load_model(folder / f"{name}.keras")
            actual = np.asarray(keras.ops.convert_to_numpy(model(ids))).astype("float32")
            np.testing.assert_allclose(actual, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)
        print("all equal")
        """,
        tmp_path,
    )
    assert output.strip().endswith("all equal")


@every_cell
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_near(models, cell, policy):
    model, ids = recurrent(cell, dtype=policy), ids_of(3, 7)
    cache = model.build_cache(3, 7)
    assert {keras.backend.standardize_dtype(x.dtype) for x in keras.tree.flatten(cache)} == {policy[6:]}

    def logits(ids):
        pieces = [model(ids)]
        first, cache = model.call_with_cache(ids[:, :4], model.build_cache(3, 7), 0)
        return pieces[0], first, model.call_with_cache(ids[:, 4:5], cache, 4)[0]

    exact = np.stack([forward(models[cell], row) for row in ids])
    whole, *cached = (array.astype("float32") for array in run(FAST_MODE, logits, ids))
    # 11 and 8 bits, at 7 steps of two layers and a head.
    tolerance = (0.005 if policy == "mixed_float16" else 0.04) * np.linalg.norm(exact)
    assert 0 < np.linalg.norm(whole - exact) < tolerance
    assert np.linalg.norm(np.concatenate(cached, axis=1) - whole[:, :5]) < tolerance


@pytest.mark.filterwarnings("ignore:Layer Dropout does not have a `quantize` method")
def test_int8_leaves_the_cells_alone():
    """Keras quantizes the table and the head, and says of each cell that it cannot."""
    model, ids = recurrent("gru", num_layers=1), ids_of(3, 7)
    exact = np.stack([forward(model, row) for row in ids])
    with pytest.warns(UserWarning, match="Layer GRUCell does not have a `quantize` method"):
        model.quantize("int8")
    quantized = {layer.name for layer in model._flatten_layers() if layer.quantization_mode}
    assert quantized == {"token_embedding", "head"}
    whole = run(FAST_MODE, model, ids)
    assert 0 < np.linalg.norm(whole - exact) < 0.02 * np.linalg.norm(exact)


# Training


@needs_tensorflow
def test_xla_trains_the_same():
    x, y, losses = ids_of(4, 7), ids_of(7, 4).T, []
    x[1, 5:] = x[2, :2] = 0
    for jit_compile in (True, False):
        model = recurrent("lstm", num_layers=1, mask_zero=True)
        model.compile(keras.optimizers.SGD(0.5), jit_compile=jit_compile)
        losses.append(model.fit(x, y, epochs=4, verbose=0).history["loss"])
    assert_close(*losses, 1e-5)
    assert losses[0][-1] < losses[0][0] - 0.01


def clipped(gradients, theta):
    """S2's `g = min(1, theta / ||g||) g`, the norm over all weights."""
    norm = np.sqrt(sum(np.sum(np.square(gradient.astype("float64"))) for gradient in gradients))
    return norm, [min(1, theta / norm) * gradient.astype("float64") for gradient in gradients]


def gradients_of(model, ids):
    return weight_gradient(FAST_MODE, model, lambda x, y: model.compute_loss(x, y, model(x)), ids[:, :-1], ids[:, 1:])


@pytest.mark.parametrize("theta", [0.1, 4.0])
def test_global_clipnorm_of_sgd_is_the_clipping_of_s2(theta):
    """With an id twice in a batch Keras on TensorFlow takes the norm of the table's gradient before it sums them."""
    model = recurrent("lstm", num_layers=1)
    model.compile(keras.optimizers.SGD(1.0, global_clipnorm=theta), jit_compile=JIT)
    ids = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]], "int32")
    before = model.get_weights()
    norm, expected = clipped(gradients_of(model, ids), theta)
    assert 0.1 < norm < 4
    model.train_on_batch(ids[:, :-1], ids[:, 1:])
    assert_close([old - new for old, new in zip(before, model.get_weights(), strict=True)], expected, 2e-6)


@pytest.mark.parametrize("theta", [0.25, 4.0])
def test_global_clipnorm_of_smoothed_rms_is_the_clipping_of_s2(theta):
    """Over three steps: the first would be the same without. Ids stand several times in a batch."""
    model = recurrent("gru", num_layers=1)
    model.compile(SmoothedRMS(0.1, beta=0.8, mu=0.7, global_clipnorm=theta), jit_compile=JIT)
    weights = [weight.astype("float64") for weight in model.get_weights()]
    r, v, norms = [0.0] * len(weights), [0.0] * len(weights), []
    for ids in np.split(ids_of(9, 5) % 4, 3):
        norm, gradients = clipped(gradients_of(model, ids), theta)
        norms.append(norm)
        r = [0.8 * old + 0.2 * g**2 for old, g in zip(r, gradients, strict=True)]
        v = [0.7 * old + 0.3 * g for old, g in zip(v, gradients, strict=True)]
        steps = [0.1 / (np.sqrt(one) + 1e-8) * other for one, other in zip(r, v, strict=True)]
        weights = [weight - step for weight, step in zip(weights, steps, strict=True)]
        model.train_on_batch(ids[:, :-1], ids[:, 1:])
        assert_close([weight.astype("float64") for weight in model.get_weights()], weights, 1e-4)
    assert min(norms) > 0.25 and max(norms) < 4


def test_dropout_acts_in_training_only_and_by_its_seed(models):
    ids = ids_of(3, 7)
    one, other, different = (recurrent(dropout=0.5, seed=seed) for seed in (1, 1, 2))

    def both(ids):
        return [model(ids, training=True) for model in (one, other, different)], one(ids)

    (first, again, third), plain = run(FAST_MODE, both, ids)
    assert_close(plain, np.stack([forward(one, row) for row in ids]), 2e-6)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - third).max() > 0.1 and np.abs(first - plain).max() > 0.1
    assert (
        len({layer.seed for layer in one.recurrent_stack.dropout_layers})
        == len(one.recurrent_stack.dropout_layers)
        == 3
    )


def test_learns_what_takes_memory():
    """The target is the token before, drawn uniformly: without memory no model beats the entropy, log 4."""
    x = np.random.default_rng(0).integers(1, 5, (256, 9)).astype("int32")
    y = np.pad(x[:, :-1], ((0, 0), (1, 0)))  # the first is known, 0
    model = recurrent("lstm", vocabulary_size=5, hidden_dim=16, num_layers=1, scale=0.3)
    model.compile(keras.optimizers.Adam(0.03), jit_compile=JIT)
    model.fit(x, y, batch_size=32, epochs=12, verbose=0)
    unseen = np.random.default_rng(1).integers(1, 5, (64, 9)).astype("int32")
    loss = model.evaluate(unseen[:, 1:], unseen[:, :-1] * (np.arange(8) > 0), verbose=0)
    assert loss < 0.1 * np.log(4) * 7 / 8


@needs_tensorflow
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_onnx_and_what_is_refused(models, tmp_path):
    model = models["gru"]
    logits = exported(model, "onnx", tmp_path)
    for shape in ((1, 1), (3, 7)):
        assert_close(logits(token_ids=ids_of(*shape)), to_numpy(model(ids_of(*shape))), 1e-5)
    for name in ("openvino", "litert"):
        with pytest.raises(ValueError, match="does not carry recurrent layers"):
            model.export(str(tmp_path / "refused"), format=name)
