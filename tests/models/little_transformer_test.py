"""LittleTransformer against NumPy written from S3 and S1, and the laws it shares with its layers."""

import json

import keras
import numpy as np
import pytest

from keras_lt.layers import TransformerBlock
from keras_lt.models import LittleTransformer, presets
from model_equations import blocks, causal, embed, head, softmax
from model_testing import FAST_MODE, OPTIONS, random_ids, small
from testing import (
    BACKEND,
    MODES,
    assert_close,
    compiled,
    fresh_process,
    gradient,
    needs_tensorflow,
    run,
    to_numpy,
    weight_gradient,
)

# XLA takes longer to compile a training step than these tests to run it.
JIT = False if BACKEND == "tensorflow" else "auto"


def compile_once(mode, function, example):
    call = compiled(mode, function, (example,))
    return lambda ids: to_numpy(call([keras.ops.convert_to_tensor(ids)]))


def forward(model, ids, blocked):
    """The logits of one sequence; `blocked` is what is added to a score after the query."""
    x, _ = blocks(embed(model.embedding, ids), model.blocks, model.norm, blocked=causal(len(ids), blocked))
    return head(x, model)


def s3_forward(model, ids):
    return forward(model, ids, blocked=-1e9)


def s1_forward(model, ids):
    return softmax(forward(model, ids, blocked=-np.inf))


def test_s3_has_its_number_of_parameters():
    # tokens + positions + 2 blocks (4 attention kernels, 2 norms, feed-forward) + norm + head
    block = 4 * 32 * 32 + 2 * 2 * 32 + 2 * 32 * 128 + 128 + 32
    assert LittleTransformer().count_params() == 65 * 32 + 64 * 32 + 2 * block + 2 * 32 + 32 * 65 + 65 == 31_489


@pytest.mark.parametrize("mode", MODES)
def test_default_form_equals_s3(mode):
    model, ids = small(), random_ids(5, 11)
    assert_close(run(mode, model, ids), np.stack([s3_forward(model, row) for row in ids]).astype("float32"), 1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_named_tensor_form_equals_s1(mode):
    sizes = ("norm_first", "position", "scale_embeddings", "tie_embeddings")
    model, ids = small(**{name: presets.NAMED_TENSOR[name] for name in sizes}), random_ids(5, 11)
    probabilities = run(mode, lambda ids: keras.ops.softmax(model(ids)), ids)
    assert_close(probabilities, np.stack([s1_forward(model, row) for row in ids]).astype("float32"), 1e-5)


def test_loss_equals_s3():
    model, ids, targets = small(), random_ids(4, 7), random_ids(7, 4).T
    model.compile(jit_compile=JIT)
    logits = np.concatenate([s3_forward(model, row) for row in ids])  # S3 reshapes to [b * l, v]
    expected = -np.log(softmax(logits)[np.arange(logits.shape[0]), targets.ravel()]).mean()
    assert_close(model.evaluate(ids, targets, verbose=0), float(expected), 1e-5)


def check_causality(mode, model):
    ids = random_ids(2, 11)
    changed = ids.copy()
    changed[:, 6:] = ids[:, 6:][:, ::-1] % 22 + 1
    both = compile_once(mode, model, ids)
    np.testing.assert_array_equal(both(ids)[:, :6], both(changed)[:, :6])
    assert np.abs(both(ids)[:, 6:] - both(changed)[:, 6:]).min() > 0


@pytest.mark.parametrize("option", OPTIONS)
def test_later_tokens_change_nothing_before(option):
    check_causality("eager", small(**{option: OPTIONS[option]}))


@pytest.mark.parametrize("mode", MODES)
def test_later_tokens_change_nothing_before_when_compiled(mode):
    check_causality(mode, small())


@pytest.mark.parametrize("arguments", [{}, {"position": "rotary"}, {"position": "sinusoidal", "norm_first": False}])
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(arguments, side):
    model, ids = small(max_sequence_length=29, **arguments), random_ids(3, 7)
    padding = np.full((3, 5), 9, "int32")
    parts = [padding, ids] if side == "left" else [ids, padding]
    real = slice(5, None) if side == "left" else slice(0, 7)
    mask = np.zeros((3, 12), bool)
    mask[:, real] = True
    inputs = {"token_ids": np.concatenate(parts, 1), "padding_mask": mask}
    for mode in ["eager"] if arguments else MODES:
        assert_close(run(mode, model, inputs)[:, real], to_numpy(model(ids)), 1e-5)


def test_mask_zero_equals_padding_mask():
    plain, masked = small(), small(mask_zero=True)
    masked.set_weights(plain.get_weights())
    ids = np.pad(random_ids(3, 7), ((0, 0), (2, 3)))
    expected = plain({"token_ids": ids, "padding_mask": ids > 0})
    assert_close(masked(ids)[:, 2:-3], expected[:, 2:-3])


def test_segments_equal_documents_alone():
    for position in ("learned", "rotary"):
        model, ids = small(position=position), random_ids(1, 13)
        segments = np.array([[4, 4, 4, 4, 2, 2, 2, 2, 2, 7, 7, 7, 7]], "int32")
        packed = run(MODES[-1], model, {"token_ids": ids, "segment_ids": segments})
        alone = [to_numpy(model(part)) for part in (ids[:, :4], ids[:, 4:9], ids[:, 9:])]
        assert_close(packed, np.concatenate(alone, 1), 1e-5)


def test_segments_and_padding_together():
    model, ids = small(), random_ids(1, 9)
    segments = np.array([[0, 0, 1, 1, 1, 1, 2, 2, 2]], "int32")
    mask = np.array([[0, 0, 1, 1, 1, 0, 0, 1, 1]], bool)
    packed = to_numpy(model({"token_ids": ids, "segment_ids": segments, "padding_mask": mask}))
    assert_close(packed[:, 2:5], to_numpy(model(ids[:, 2:5])), 1e-5)
    assert_close(packed[:, 7:9], to_numpy(model(ids[:, 7:9])), 1e-5)


def sentences(width):
    """Three sentences of 5, 9 and 12 ids with their targets, padded with 0 to a width."""
    x, y = np.zeros((3, width), "int32"), np.zeros((3, width), "int32")
    for row, length in enumerate((5, 9, 12)):
        tokens = np.random.default_rng(row).integers(1, 23, length + 1)
        x[row, :length], y[row, :length] = tokens[:-1], tokens[1:]
    return x, y


def test_padded_to_16_and_64_trains_the_same():
    results = []
    for width in (16, 64):
        model = small(max_sequence_length=64, mask_zero=True, num_layers=1)
        model.compile(optimizer=keras.optimizers.SGD(0.1), weighted_metrics="auto", jit_compile=JIT)
        x, y = sentences(width)
        evaluated = model.evaluate(x, y, verbose=0, return_dict=True)
        mode = "eager" if BACKEND == "tensorflow" else MODES[-1]
        custom = float(run(mode, lambda x, y, m=model: m.compute_loss(x, y, m(x)), x, y))
        gradients = weight_gradient(mode, model, lambda x, y, m=model: m.compute_loss(x, y, m(x)), x, y)
        fitted = model.fit(x, y, verbose=0).history
        results.append((evaluated, custom, gradients, fitted, model.get_weights()))
    for one, other in zip(*results, strict=True):
        assert_close(one, other, 1e-5)
    evaluated, custom, _, fitted, _ = results[0]
    assert_close(evaluated["loss"], custom, 1e-5)
    assert_close(fitted["loss"][0], custom, 1e-5)
    assert_close(evaluated["perplexity"], float(np.exp(custom)), 1e-5)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.filterwarnings("error:Layer:UserWarning")
def test_padding_mask_counts_in_loss_and_metrics(tied):
    x, y = sentences(13)
    masked, zero_is_padding = (small(num_layers=1, tie_embeddings=tied, mask_zero=zero) for zero in (False, True))
    zero_is_padding.set_weights(masked.get_weights())
    results = []
    for model, inputs in ((masked, {"token_ids": x, "padding_mask": x != 0}), (zero_is_padding, x)):
        model.compile(optimizer=keras.optimizers.SGD(0.1), weighted_metrics="auto", jit_compile=JIT)
        evaluated = model.evaluate(inputs, y, verbose=0, return_dict=True)
        results.append((evaluated, model.fit(inputs, y, verbose=0).history, model.get_weights()))
    for one, other in zip(*results, strict=True):
        assert_close(one, other, 1e-5)


class Batches(keras.utils.PyDataset):
    def __init__(self, x, y):
        super().__init__()
        self.x, self.y = x, y

    def __len__(self):
        return 3

    def __getitem__(self, index):
        rows = slice(4 * index, 4 * index + 4)
        return self.x[rows], self.y[rows]


def test_every_kind_of_data_trains_the_same():
    x, y = random_ids(11, 7), random_ids(7, 11).T

    def generator():
        for start in range(0, 11, 4):
            yield x[start : start + 4], y[start : start + 4]

    kinds = {"arrays": (x, y), "PyDataset": (Batches(x, y),), "generator": (generator(),)}
    kinds["sample_weight"] = (x, y, np.ones(11, "float32"))
    if BACKEND == "tensorflow":
        import tensorflow as tf

        kinds["tf.data"] = (tf.data.Dataset.from_tensor_slices((x, y)).batch(4),)
    weights = {}
    for kind, (data, *targets) in kinds.items():
        model = small(num_layers=1)
        model.compile(optimizer=keras.optimizers.SGD(0.1), jit_compile=JIT)
        arguments = dict(zip(("y", "sample_weight"), targets, strict=False))
        model.fit(data, batch_size=4 if targets else None, shuffle=False, verbose=0, **arguments)
        weights[kind] = model.get_weights()
    for kind, values in weights.items():
        assert_close(values, weights["arrays"], 1e-5), kind


def test_sample_weight_of_a_row_equals_leaving_rows_out():
    model, x, y = small(), random_ids(5, 7), random_ids(7, 5).T
    model.compile(weighted_metrics="auto", jit_compile=JIT)
    weighted = model.evaluate(x, y, sample_weight=np.array([1, 0, 1, 0, 1.0]), verbose=0, return_dict=True)
    left_out = model.evaluate(x[::2], y[::2], verbose=0, return_dict=True)
    assert_close(weighted, left_out, 1e-5)


def test_compile_auto():
    import keras_lt

    model = small(num_layers=1)
    model.compile()
    assert isinstance(model.optimizer, keras_lt.optimizers.SmoothedRMS)
    assert isinstance(model.loss, keras_lt.losses.TokenCrossentropy)
    x, y = random_ids(4, 7), random_ids(7, 4).T
    assert set(model.fit(x, y, verbose=0).history) == {"loss"}
    model.compile(weighted_metrics="auto", jit_compile=JIT)
    assert set(model.fit(x, y, verbose=0).history) == {"loss", "perplexity"}
    if BACKEND == "tensorflow":
        model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", jit_compile=False, run_eagerly=True)
        model.fit(x, y, verbose=0)


def largest_tensor(model, length):
    """Number of elements of the largest tensor in a training step's forward and backward pass, which is only traced."""

    def total(token_ids):
        return keras.ops.sum(model(token_ids, training=True))

    if BACKEND == "tensorflow":
        import tensorflow as tf

        @tf.function
        def step(token_ids):
            with tf.GradientTape() as tape:
                value = total(token_ids)
            return tape.gradient(value, model.trainable_weights)

        graph = step.get_concrete_function(tf.TensorSpec((1, length), "int32")).graph
        return max(x.shape.num_elements() or 0 for operation in graph.get_operations() for x in operation.outputs)
    import jax

    def total_of_weights(values):
        with keras.StatelessScope(state_mapping=list(zip(model.trainable_variables, values, strict=True))):
            return total(np.zeros((1, length), "int32"))

    def largest(jaxpr):
        inner = [getattr(value, "jaxpr", value) for line in jaxpr.eqns for value in line.params.values()]
        sizes = [x.aval.size for line in jaxpr.eqns for x in line.outvars]
        return max(sizes + [largest(value) for value in inner if hasattr(value, "eqns")])

    return largest(jax.make_jaxpr(jax.grad(total_of_weights))([x.value for x in model.trainable_variables]).jaxpr)


def test_a_window_makes_no_matrix_of_all_positions():
    """No mask, no scores, no gradient of either: the largest tensor is the scores of blocks of two windows."""
    length, window_size = 8192, 64
    arguments = {"num_layers": 1, "position": "rotary", "max_sequence_length": None, "dropout": 0.1, "mask_zero": True}
    windowed, full = (small(window_size=size, **arguments) for size in (window_size, None))
    assert largest_tensor(windowed, length) == 3 * length * 2 * window_size
    assert largest_tensor(full, length) == 3 * length * length


def test_scores_and_features():
    model, ids = small(), random_ids(2, 7)
    logits, scores = model(ids, return_attention_scores=True)
    assert_close(to_numpy(logits), to_numpy(model(ids)))
    assert [tuple(score.shape) for score in scores] == [(2, 3, 7, 7)] * 2
    assert_close(np.sum(to_numpy(scores[1]), -1), np.ones((2, 3, 7), "float32"))
    features, _ = model(ids, return_features=True, return_attention_scores=True)
    assert_close(to_numpy(model.head(features)), to_numpy(logits))


@pytest.mark.parametrize("bad", [-1, 23, 2**31 - 1])
@pytest.mark.parametrize("mode", MODES)
def test_wrong_id(mode, bad):
    model, ids = small(), random_ids(3, 7)
    ids[1, 4] = bad
    if mode == "eager":
        with pytest.raises(ValueError, match=rf"(?s){bad} at \[1, 4\]"):
            model(ids)
    else:
        logits = run(mode, model, ids)
        assert np.isnan(logits[1]).any(-1)[4:].all()
        assert np.isfinite(logits[[0, 2]]).all()


@pytest.mark.parametrize("position", ["learned", "sinusoidal", "rotary", None])
def test_too_long(position):
    for mode in MODES:
        with pytest.raises(ValueError, match="13.*14"):
            run(mode, small(position=position, num_layers=1), random_ids(2, 14))


def test_no_limit():
    for position in ("rotary", None):
        assert small(position=position, max_sequence_length=None)(random_ids(2, 40)).shape == (2, 40, 23)
    for position in ("learned", "sinusoidal"):
        with pytest.raises(ValueError, match="max_sequence_length"):
            small(position=position, max_sequence_length=None)


def test_wrong_inputs():
    model, ids = small(), random_ids(2, 7)
    for inputs in (ids[0], ids[..., None]):
        with pytest.raises(ValueError, match=r"\(B, T\)"):
            model(inputs)
    with pytest.raises(ValueError, match="token_ids.*padding_mask.*segment_ids"):
        model({"token_ids": ids, "mask": ids > 0})
    for arguments in (
        {"position": "relative"},
        {"num_layers": 0},
        {"dropout": 1.0},
        {"num_heads": 5},
        {"layer_norm_epsilon": -1.0},
    ):
        with pytest.raises(ValueError, match=next(iter(arguments))):
            small(**arguments)


def test_wrong_shapes_of_masks():
    ids = random_ids(2, 7)
    for name in ("padding_mask", "segment_ids"):
        for shape in ((2, 6), (1, 7), (2, 7, 1)):
            with pytest.raises(ValueError, match=rf"(?s)`{name}`.*\(2, 7\)"):
                small()({"token_ids": ids, name: np.ones(shape, "int32")})


def test_fit_works_after_a_fit_that_failed():
    model, ids = small(num_layers=1), random_ids(2, 7)
    model.compile(jit_compile=JIT)
    with pytest.raises(ValueError, match="shape"):
        model.fit(ids, ids[:, 1:], verbose=0)
    assert np.isfinite(model.fit(ids, ids, verbose=0).history["loss"]).all()


def test_odd_sizes():
    model = small()
    assert model(random_ids(1, 1)).shape == (1, 1, 23)
    assert model(np.zeros((0, 7), "int32")).shape == (0, 7, 23)
    assert model.predict(random_ids(7, 5), batch_size=3, verbose=0).shape == (7, 5, 23)


def test_spec_equals_real_shape():
    model = small()
    outputs, scores = model(keras.Input((None,)), return_attention_scores=True)
    assert outputs.shape == (None, None, 23) and scores[1].shape == (None, 3, None, None)
    assert model.compute_output_shape((5, 7)) == tuple(model(random_ids(5, 7)).shape)
    assert model(keras.Input((7,), dtype="int32"), return_features=True).shape == (None, 7, 12)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "float16", "bfloat16"])
def test_half_precision_is_finite_and_near(policy):
    reference = small()
    model = small(dtype=policy)
    model.set_weights(reference.get_weights())
    ids = random_ids(3, 7)
    logits = run("eager" if policy == model.dtype else MODES[-1], model, ids).astype("float32")
    exact = run("eager", reference, ids)
    # bfloat16 has 8 bits of mantissa, and two blocks add up their roundings.
    assert np.abs(logits - exact).max() < (0.03 if "bfloat16" not in policy else 0.2) * np.abs(exact).max()
    assert {layer.compute_dtype for layer in model._flatten_layers()} == {model.compute_dtype}


def test_half_precision_trains():
    x, y = random_ids(8, 7), random_ids(7, 8).T
    for policy in ("mixed_bfloat16", "mixed_float16"):
        model = small(dtype=policy, num_layers=1)
        model.compile(jit_compile=JIT)
        losses = model.fit(x, y, epochs=30, verbose=0).history["loss"]
        assert losses[-1] < losses[0] / 2 and np.isfinite(losses).all()


def test_dropout_acts_in_training_only_and_by_its_seed():
    ids = random_ids(3, 7)
    one, other, different = (small(dropout=0.5, seed=seed) for seed in (1, 1, 2))
    assert_close(to_numpy(one(ids)), to_numpy(small()(ids)))
    trained = to_numpy(one(ids, training=True))
    np.testing.assert_array_equal(trained, to_numpy(other(ids, training=True)))
    assert np.abs(trained - to_numpy(different(ids, training=True))).max() > 0.1
    seeds = [layer.seed for layer in one._flatten_layers() if isinstance(layer, keras.layers.Dropout)]
    assert len(seeds) == len(set(seeds))


def test_tied_weights_are_one_variable():
    model = small(tie_embeddings=True)
    assert model.count_params() == small().count_params() - 12 * 23 - 23
    values = weight_gradient("eager", model, lambda ids: model(ids)[..., 0], random_ids(1, 3))
    assert np.abs(values[0][0]).sum() > 0


def test_gradient_reaches_all_weights():
    model, ids = small(), random_ids(4, 13)
    gradients = weight_gradient(MODES[-1], model, lambda ids: model(ids) ** 2, ids)
    for weight, values in zip(model.trainable_variables, gradients, strict=True):
        assert np.isfinite(values).all() and np.abs(values).max() > 0, weight.path


def test_as_a_layer_of_another_model():
    inner = small()
    inputs = keras.Input((None,), dtype="int32")
    outer = keras.Model(inputs, keras.layers.Dense(5)(inner(inputs, return_features=True)))
    assert outer.predict(random_ids(2, 7), verbose=0).shape == (2, 7, 5)
    outer.compile("sgd", "mse")
    before = inner.get_weights()[0]
    outer.fit(random_ids(2, 7), np.ones((2, 7, 5)), verbose=0)
    assert np.abs(inner.get_weights()[0] - before).max() > 0


def test_clone_model():
    model = small(window_size=3, tie_embeddings=True)
    clone = keras.models.clone_model(model)
    assert clone.get_config() == {**model.get_config(), "name": clone.name}
    clone.set_weights(model.get_weights())
    assert_close(to_numpy(clone(random_ids(2, 7))), to_numpy(model(random_ids(2, 7))))


def test_saves_and_loads_in_a_fresh_process(tmp_path):
    """Every option at a value of its own, policies, nesting, quantization (saved twice), state of the optimizer."""
    ids = random_ids(2, 7)
    options, full = list(OPTIONS.items()), BACKEND == "tensorflow"  # seconds a model elsewhere
    thirds = range(3 if full else 1)
    models = {f"options_{third}": small(**{"num_layers": 1, **dict(options[third::3])}) for third in thirds}
    for policy in ("mixed_bfloat16", "float64") if full else ():
        models[f"policy_{policy}"] = small(dtype=policy, num_layers=1)
    inputs = keras.Input((None,), dtype="int32")
    models["nested"] = keras.Sequential([inputs, small(tie_embeddings=True, num_layers=1), keras.layers.Dense(3)])
    for mode in ("int8", "int4") if full else ():
        models[mode] = small(tie_embeddings=mode == "int8", num_layers=1)
        models[mode].quantize(mode)
    if full:
        models["nested_int8"] = keras.Sequential([keras.Input((None,), dtype="int32"), small(num_layers=1)])
        models["nested_int8"].quantize("int8")
    models["trained"] = small(num_layers=1)
    models["trained"].compile(weighted_metrics="auto", jit_compile=JIT)
    models["trained"].fit(ids, ids, verbose=0)
    for name, model in models.items():
        model.save(tmp_path / f"{name}.keras")
    expected = {name: np.asarray(to_numpy(model(ids))).astype("float64") for name, model in models.items()}
    models["trained"].fit(ids, ids, verbose=0)
    expected["trained_on"] = to_numpy(models["trained"](ids))
    np.savez(tmp_path / "expected.npz", ids=ids, **expected)
    output = fresh_process(
        """
        import pathlib, sys
        import keras, numpy as np
        import keras_lt

        folder = pathlib.Path(sys.argv[1])
        expected = dict(np.load(folder / "expected.npz"))
        ids = expected.pop("ids")

        def check(name, model, tolerance=1e-6):
            actual = np.asarray(keras.ops.convert_to_numpy(model(ids))).astype("float64")
            np.testing.assert_allclose(actual, expected[name], rtol=tolerance, atol=tolerance, err_msg=name)

        for name in expected:
            if name == "trained_on":
                continue
            model = keras.saving.load_model(folder / f"{name}.keras")
            check(name, model)
            if "int" in name or "nested" in name:
                model.save(folder / "again.keras")
                check(name, keras.saving.load_model(folder / "again.keras"))
            if name == "trained":
                assert [m.name for m in model.metrics] == ["loss", "compile_metrics"], model.metrics
                model.fit(ids, ids, verbose=0)
                check("trained_on", model, 1e-5)  # the update divides small gradients, rounding and all, by their size
            if name == "int8":  # the tied table and its scales, for both directions, are there once
                assert len([weight for weight in model.weights if "token_embedding/embeddings" in weight.path]) <= 2
        print("all equal")
        """,
        tmp_path,
    )
    assert output.strip().endswith("all equal")


def test_config_holds_every_option():
    for name, value in OPTIONS.items():
        model = LittleTransformer(**{name: value})
        again = LittleTransformer.from_config(model.get_config())
        assert again.get_config() == model.get_config()
        assert model.get_config()[name] != LittleTransformer().get_config()[name], name


def test_integers_of_numpy_are_integers():
    sizes = {"vocabulary_size": 7, "max_sequence_length": 5, "num_layers": 1, "num_heads": 2, "hidden_dim": 4}
    sizes |= {"head_dim": 3, "num_key_value_heads": 1, "intermediate_dim": 6, "window_size": 2}
    config = LittleTransformer(**{name: np.int64(value) for name, value in sizes.items()}).get_config()
    assert {name: json.loads(json.dumps(config))[name] for name in sizes} == sizes


def test_quantized_is_near_and_jit_compiles():
    # A step of 8 bits is 1/127 of the largest weight, one of 4 bits 1/7; the errors of two blocks add up.
    for mode, tolerance in [("int8", 0.05), ("int4", 0.3)][: 1 if BACKEND == "jax" else 2]:
        model, ids = small(), random_ids(3, 7)
        exact = to_numpy(model(ids))
        model.quantize(mode)
        for compilation in MODES if mode == "int8" and BACKEND == "tensorflow" else [FAST_MODE]:
            assert np.linalg.norm(run(compilation, model, ids) - exact) < tolerance * np.linalg.norm(exact)


@needs_tensorflow
def test_export_has_a_named_dynamic_signature(tmp_path):
    import tensorflow as tf

    model = small()
    model.export(tmp_path / "saved", verbose=False)
    signature = tf.saved_model.load(str(tmp_path / "saved")).signatures["serving_default"]
    for shape in ((1, 1), (3, 7)):
        served = signature(token_ids=tf.constant(random_ids(*shape)))
        assert_close(next(iter(served.values())).numpy(), to_numpy(model(random_ids(*shape))), 1e-5)


@needs_tensorflow
def test_mirrored_strategy_trains_as_one_device():
    fresh_process(
        """
        import keras, numpy as np, tensorflow as tf
        import keras_lt

        tf.config.set_logical_device_configuration(
            tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
        )

        def fit():
            keras.utils.set_random_seed(0)
            model = keras_lt.models.LittleTransformer(23, 7, 1, 2, 8)
            model.compile(optimizer=keras.optimizers.SGD(0.1), weighted_metrics="auto")
            ids = np.arange(56, dtype="int32").reshape(8, 7) % 23
            history = model.fit(ids, ids, batch_size=4, epochs=2, shuffle=False, verbose=0).history
            return [*model.get_weights(), *map(np.array, history.values())]

        alone = fit()
        with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            together = fit()
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
        """
    )


def test_blocks_are_transformer_blocks_with_one_seeded_initializer_apart():
    model = LittleTransformer(kernel_initializer=keras.initializers.RandomNormal(seed=3))
    kernels = [to_numpy(kernel) for block in model.blocks for kernel in _kernels(block)]
    assert all(isinstance(block, TransformerBlock) for block in model.blocks)
    for index, kernel in enumerate(kernels):
        for other in kernels[index + 1 :]:
            assert kernel.shape != other.shape or np.abs(kernel - other).max() > 0.01


def _kernels(block):
    attention, feed_forward = block.attention, block.feed_forward
    yield from (attention.query_kernel, attention.key_kernel, attention.value_kernel, attention.output_kernel)
    yield from (feed_forward.intermediate.kernel, feed_forward.output_projection.kernel)


def test_padded_position_gets_no_gradient():
    model = small()
    ids = random_ids(1, 7)
    mask = np.array([[1, 1, 1, 1, 0, 0, 0]], bool)

    def loss(embedded):
        x = embedded
        for block in model.blocks:
            x = block(x, padding_mask=mask)
        return x[:, :4]

    embedded = to_numpy(model.embedding(ids))
    values = gradient(FAST_MODE, loss, embedded)
    assert np.abs(values[:, :4]).min() > 0
    np.testing.assert_array_equal(values[:, 4:], 0)
