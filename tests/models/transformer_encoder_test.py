"""TransformerEncoder against NumPy written from S3 and S1 without the causal mask; padding, segments, reuse, files."""

import keras
import numpy as np
import pytest

from keras_lt import TextGenerator
from keras_lt.models import TransformerEncoder, presets
from keras_lt.tokenizers import CharTokenizer
from model_equations import blocks, embed, head
from model_testing import (
    FAST_MODE,
    OPTIONS,
    check_reload,
    exported,
    log_softmax,
    random_ids,
    small,
    without_initializers,
)
from testing import BACKEND, MODES, assert_close, needs_tensorflow, run, to_numpy

# XLA takes longer to compile a training step than these tests to run it.
JIT = False if BACKEND == "tensorflow" else "auto"
NAMED_TENSOR = {name: value for name, value in presets.NAMED_TENSOR.items() if type(value) is not int}
FORMS = {"s3": {}, "s1": NAMED_TENSOR, "no_positions": {"position": None}}
# What an encoder has not: a position that looks back only.
OWN_OPTIONS = {name: value for name, value in OPTIONS.items() if name != "window_size"} | {"position": "sinusoidal"}


def encoder(**arguments):
    return small(TransformerEncoder, **arguments)


@pytest.fixture(scope="module")
def models():
    """One of each form, for tests that change nothing."""
    return {form: encoder(**arguments) for form, arguments in FORMS.items()}


def forward(model, ids):
    """What goes into the head, of one sequence, and the weights of each block."""
    x, (weights,) = blocks(embed(model.embedding, ids), model.blocks, model.norm)
    return x, weights


# The equations


@pytest.mark.parametrize("form", FORMS)
def test_equals_the_equations(models, form):
    """Logits, features and what each block looked at; no mask blocks what comes after."""
    model, ids = models[form], random_ids(4, 11)

    def call(ids):
        return model(ids, return_attention_scores=True), model(ids, return_features=True)

    rows = [forward(model, row) for row in ids]
    for mode in MODES if form == "s3" else [FAST_MODE]:
        (logits, scores), features = run(mode, call, ids)
        assert_close(features, np.stack([x for x, _ in rows]), 1e-5)
        assert_close(logits, np.stack([head(x, model) for x, _ in rows]), 1e-5)
        for number, found in enumerate(scores):
            assert_close(found, np.stack([weights[number] for _, weights in rows]), 1e-5)


def test_number_of_parameters():
    # As LittleTransformer's: tokens, positions, 2 blocks, norm, head with bias.
    block = 4 * 32 * 32 + 2 * 2 * 32 + 2 * 32 * 128 + 128 + 32
    assert TransformerEncoder().count_params() == 65 * 32 + 64 * 32 + 2 * block + 2 * 32 + 32 * 65 + 65


# Padding, segments, company


@pytest.mark.parametrize("form", FORMS)
def test_padding_changes_nothing(models, form):
    """Right, left and inside, said by a mask, whatever id stands there, or by id 0; nor what is looked at, nor a mean.

    Padding is looked at by nobody.
    """
    plain, zero = models[form], encoder(mask_zero=True, **FORMS[form])
    ids = random_ids(3, 5)
    places = {"right": [0, 1, 2, 3, 4], "left": [4, 5, 6, 7, 8], "inside": [1, 2, 4, 7, 8]}
    masks = {side: np.isin(np.arange(9), place)[None].repeat(3, axis=0) for side, place in places.items()}
    padded = {side: np.full((3, 9), 8, "int32") for side in places}
    for side, place in places.items():
        padded[side][:, place] = ids

    def answers(model, inputs):
        return model(inputs, return_attention_scores=True), model(inputs, return_features="mean")

    def call(ids, padded, masks):
        return answers(plain, ids), {
            side: [
                answers(plain, {"token_ids": x, "padding_mask": masks[side]}),
                answers(zero, keras.ops.where(masks[side], x, 0)),
            ]
            for side, x in padded.items()
        }

    ((logits, scores), mean), found = run(FAST_MODE, call, ids, padded, masks)
    assert_close(mean, np.stack([forward(plain, row)[0].mean(0) for row in ids]), 1e-5)
    for side, answers in found.items():
        place = places[side]
        for (padded_logits, padded_scores), padded_mean in answers:
            assert_close(padded_logits[:, place], logits, 1e-5)
            assert_close(padded_mean, mean, 1e-5)
            for one, other in zip(padded_scores, scores, strict=True):
                assert_close(one[:, :, place][..., place], other, 1e-5)
                assert not np.delete(one, place, axis=-1).any()
                assert_close(one.sum(-1), np.ones(one.shape[:-1]))


@pytest.mark.parametrize("position", ["learned", "sinusoidal", None])
def test_segments_equal_each_alone(position):
    """Positions restart and attention stops; with padding in and between them, too. Numbers of segments may return."""
    model, ids = encoder(position=position, num_layers=1), random_ids(2, 12)
    segments = np.array([[4, 4, 4, 4, 2, 2, 2, 2, 2, 7, 7, 7], [0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]], "int32")
    mask = np.ones_like(ids, bool)
    mask[1, [0, 1, 3, 6, 7]] = False
    packed = run(FAST_MODE, model, {"token_ids": ids, "segment_ids": segments, "padding_mask": mask})
    for row in range(2):
        for segment in set(segments[row]):
            places = np.flatnonzero((segments[row] == segment) & mask[row])
            if len(places):
                assert_close(packed[row, places], head(forward(model, ids[row, places])[0], model), 1e-5)


def test_order_and_company_change_nothing(models):
    model, ids = models["s3"], random_ids(5, 7)
    whole = run(FAST_MODE, model, ids)
    order = [3, 1, 4, 0, 2]
    assert_close(run(FAST_MODE, model, ids[order]), whole[order], 1e-5)
    assert_close(run(FAST_MODE, model, ids[2:3]), whole[2:3], 1e-5)


def test_mean_of_nothing_is_zero(models):
    inputs = {"token_ids": random_ids(2, 3), "padding_mask": np.array([[0, 0, 0], [1, 1, 0]], bool)}
    mean = run(FAST_MODE, lambda inputs: models["s3"](inputs, return_features="mean"), inputs)
    np.testing.assert_array_equal(mean[0], np.zeros(12))
    assert np.abs(mean[1]).min() > 0


# Wrong inputs


@pytest.mark.parametrize("bad", [-1, 23])
def test_wrong_id(models, bad):
    """Said eagerly; in a compiled step the row is NaN, and no other."""
    model, ids = models["s3"], random_ids(3, 7)
    ids[1, 4] = bad
    with pytest.raises(ValueError, match=rf"(?s){bad} at \[1, 4\]"):
        model(ids)
    if BACKEND == "jax":
        logits = run("jit", model, ids)
        assert np.isnan(logits[1]).all() and np.isfinite(logits[[0, 2]]).all()


def test_wrong_inputs(models):
    model, ids = models["s3"], random_ids(2, 7)
    for inputs in (ids[0], ids[..., None], {"token_ids": None}):
        with pytest.raises(ValueError, match=r"\(B, T\)"):
            model(inputs)
    with pytest.raises(ValueError, match="token_ids.*padding_mask.*segment_ids"):
        model({"token_ids": ids, "mask": ids > 0})
    for name in ("padding_mask", "segment_ids"):
        with pytest.raises(ValueError, match=rf"(?s)`{name}`.*\(2, 7\)"):
            model({"token_ids": ids, name: np.ones((2, 6), "int32")})
    with pytest.raises(ValueError, match="13.*14"):
        model(random_ids(2, 14))
    for inputs in (ids, keras.Input((7,), dtype="int32")):
        with pytest.raises(ValueError, match="`return_features` must be one of .*mean.*Received: 'max'"):
            model(inputs, return_features="max")


@pytest.mark.parametrize(
    ("name", "value"),
    [("position", "rotary"), ("num_layers", 0), ("dropout", 1.0), ("num_heads", 5), ("layer_norm_epsilon", -1.0)],
)
def test_wrong_arguments(name, value):
    with pytest.raises(ValueError, match=name):
        TransformerEncoder(**{name: value})


def test_it_generates_nothing(models):
    with pytest.raises(TypeError, match="a keras_lt model that generates, such as LittleTransformer. Received: Transf"):
        TextGenerator(models["s3"], CharTokenizer("abcdefghijklmnopqrstuvw"))


def test_shapes(models):
    model = models["s3"]
    for shape in ((1, 1), (0, 7), (2, 0)):
        assert tuple(model(random_ids(*shape)).shape) == (*shape, 23)
    assert model.predict(random_ids(7, 5), batch_size=3, verbose=0).shape == (7, 5, 23)
    outputs, scores = model(keras.Input((None,)), return_attention_scores=True)
    assert outputs.shape == (None, None, 23) and scores[1].shape == (None, 3, None, None)
    assert model(keras.Input((7,), dtype="int32"), return_features=True).shape == (None, 7, 12)
    assert model(keras.Input((7,), dtype="int32"), return_features="mean").shape == (None, 12)
    assert model.compute_output_shape((5, 7)) == model.compute_output_shape({"token_ids": (5, 7)}) == (5, 7, 23)


# Files, policies, formats


def test_config_holds_every_option():
    with without_initializers():
        default = TransformerEncoder().get_config()
        config = TransformerEncoder(**OWN_OPTIONS).get_config()
        again = TransformerEncoder.from_config(config).get_config()
    assert set(OWN_OPTIONS) == set(default) - {"name", "trainable", "dtype"} and again == config
    for name in OWN_OPTIONS:
        assert config[name] != default[name], name


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method", "ignore:The structure of `inputs`")
def test_saves_and_loads_in_a_fresh_process(tmp_path):
    options = {name: value for name, value in OWN_OPTIONS.items() if not name.endswith("initializer")}
    models = {"options": encoder(**options, dtype="mixed_bfloat16" if BACKEND == "tensorflow" else None)}
    inputs = keras.Input((None,), dtype="int32", name="token_ids")
    inner = encoder(num_layers=1, mask_zero=True)
    if BACKEND == "tensorflow":  # seconds a model elsewhere
        models["int8"] = encoder(num_layers=1)
        models["int8"].quantize("int8")
        models["nested"] = keras.Model(inputs, keras.layers.Dense(3)(inner(inputs, return_features="mean")))
    ids = random_ids(2, 7)
    ids[1, 5:] = 0
    check_reload(tmp_path, models, ids)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_near(models, policy):
    model, ids = encoder(dtype=policy), random_ids(3, 7)
    exact = np.stack([head(forward(models["s3"], row)[0], models["s3"]) for row in ids])
    logits = run(FAST_MODE, model, ids)
    assert logits.dtype.name == policy.removeprefix("mixed_")
    # 11 and 8 bits of mantissa, and two blocks add up their roundings.
    tolerance = (0.01 if policy == "mixed_float16" else 0.06) * np.linalg.norm(exact)
    assert 0 < np.linalg.norm(logits.astype("float64") - exact) < tolerance


@needs_tensorflow
@pytest.mark.parametrize("name", ["tf_saved_model", "onnx", "openvino", "litert"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_exports(models, name, tmp_path):
    """For other batch sizes and lengths than any that the export saw, which saw none."""
    model = models["s1"]
    logits = exported(model, name, tmp_path)
    for shape in ((1, 1), (7, 13), (2, 5)):
        assert_close(logits(token_ids=random_ids(*shape)), to_numpy(model(random_ids(*shape))), 1e-5)


# Training


def hidden(num_rows, length=7, seed=0):
    """Rows in which an id comes three times, one place hidden by id 6: what it was, and a weight only there."""
    generator = np.random.default_rng(seed)
    y = np.repeat(generator.integers(1, 6, (num_rows, 1)), length, axis=1).astype("int32")
    places = generator.integers(0, length, num_rows)
    weights = np.zeros((num_rows, length), "float32")
    weights[np.arange(num_rows), places] = 1
    noise = generator.integers(1, 6, (num_rows, length))
    x = np.where(np.abs(np.arange(length) - places[:, None]) == 1, y, noise).astype("int32")
    y = np.where(weights > 0, y, x)
    x[weights > 0] = 6
    return x, y, weights


def test_learns_what_stands_on_both_sides():
    """The hidden id is that of its neighbours, of which at the ends there is one."""
    x, y, weights = hidden(256)
    keras.utils.set_random_seed(0)
    model = TransformerEncoder(7, 7, num_layers=1, num_heads=2, hidden_dim=16)
    model.compile(keras.optimizers.Adam(0.02), weighted_metrics=["accuracy"], jit_compile=JIT)
    model.fit(x, y, sample_weight=weights, batch_size=32, epochs=15, verbose=0)
    x, y, weights = hidden(64, seed=1)
    found = model.evaluate(x, y, sample_weight=weights, verbose=0, return_dict=True)
    assert found["accuracy"] > 0.95 and found["loss"] < 0.3 * np.log(5)
    chosen = log_softmax(to_numpy(model(x)))[weights > 0][np.arange(64), y[weights > 0]]
    assert_close(found["loss"], -chosen.mean(), 1e-4)


@needs_tensorflow
def test_xla_trains_the_same():
    x, y, weights = hidden(8)
    losses = []
    for jit_compile in (True, False):
        model = encoder(num_layers=1)
        model.compile(keras.optimizers.SGD(0.3), jit_compile=jit_compile)
        losses.append(model.fit(x, y, sample_weight=weights, epochs=4, verbose=0).history["loss"])
    assert_close(*losses, 1e-4)
    assert losses[0][-1] < losses[0][0] - 0.01


def test_dropout_acts_in_training_only_and_by_its_seed(models):
    ids = random_ids(3, 7)
    one, other, different = (encoder(dropout=0.5, seed=seed) for seed in (1, 1, 2))

    def both(ids):
        return [model(ids, training=True) for model in (one, other, different)], one(ids)

    (first, again, third), plain = run(FAST_MODE, both, ids)
    assert_close(plain, run(FAST_MODE, models["s3"], ids))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - third).max() > 0.1 and np.abs(first - plain).max() > 0.1


def test_frozen_features_in_another_model():
    """Only the new head learns; padding, known by id 0, stays out of the mean."""
    inner = encoder(num_layers=1, mask_zero=True)
    inner.trainable = False
    inputs = keras.Input((None,), dtype="int32")
    outer = keras.Model(inputs, keras.layers.Dense(2, activation="softmax")(inner(inputs, return_features="mean")))
    y = np.arange(16) % 2
    ids = random_ids(16, 9) % 11 + 1 + 11 * y[:, None]
    ids[:8, 6:] = 0
    before = inner.get_weights()
    outer.compile(keras.optimizers.Adam(0.1), "sparse_categorical_crossentropy", jit_compile=JIT)
    losses = outer.fit(ids, y, epochs=20, verbose=0).history["loss"]
    assert losses[-1] < losses[0] / 2
    for one, other in zip(before, inner.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    assert_close(outer.predict(ids[:8], verbose=0), outer.predict(ids[:8, :6], verbose=0), 1e-5)
