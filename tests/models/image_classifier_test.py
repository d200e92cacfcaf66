"""What LeNet, ResNet and HighwayNetwork share: pixels, shapes, losses, files, policies and exports."""

import gc
import json

import keras
import numpy as np
import pytest

from keras_lt.models import HighwayNetwork, LeNet, ResNet
from keras_lt.optimizers import SmoothedRMS
from model_testing import exported
from testing import BACKEND, assert_close, fresh_process, needs_tensorflow, run, to_numpy
from testing import MODES as COMPILATIONS

# XLA takes longer to compile a training step than these tests to run it; JAX has nothing between XLA and one op a time.
JIT = False if BACKEND == "tensorflow" else "auto"
FAST_MODE = "jit" if BACKEND == "jax" else "eager"
B, H, W, C, CLASSES = 2, 10, 13, 3, 4
MODELS = {
    "lenet": (LeNet, {"num_classes": CLASSES, "filters": (2, 3), "kernel_size": 3, "hidden_units": (5,)}),
    "resnet": (ResNet, {"num_classes": CLASSES, "blocks": (1, 1), "filters": (2, 3)}),
    "highway": (HighwayNetwork, {"num_classes": CLASSES, "num_layers": 2, "hidden_dim": 5}),
}
# For each argument a value that is not its default.
SHARED = {
    "data_format": "channels_first",
    "classifier_activation": None,
    "image_shape": (3, 14, 17),
    "dtype": "mixed_bfloat16",
    "name": "another_name",
    "trainable": False,
}
OPTIONS = {
    "lenet": {"kernel_size": (3, 2), "pool_size": (1, 2), "hidden_units": (6, 5), "flatten": False},
    "resnet": {"blocks": (2, 1), "shortcut": "A", "bottleneck": True, "stem": "large", "filters": (2, 4)},
    "highway": {"activation": "tanh", "transform_gate_bias": -1.5},
}
every_model = pytest.mark.parametrize("name", MODELS)


def built(name, **arguments):
    """A model in which every weight matters; kernels start at 0, as JAX compiles an initializer for each shape."""
    kind, sizes = MODELS[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.initializers.VarianceScaling, "__call__", keras.initializers.Zeros().__call__)
        first = arguments.get("data_format") == "channels_first"
        model = kind(**{"image_shape": (C, H, W) if first else (H, W, C), **sizes, **arguments})
    random = np.random.default_rng(0)
    for weight in model.weights:
        values = random.normal(0, 0.3, weight.shape)
        weight.assign(np.abs(values) + 0.5 if weight.path.endswith(("gamma", "variance")) else values)
    return model


@pytest.fixture(scope="module")
def models():
    """One of each, for tests that change nothing."""
    return {name: built(name) for name in MODELS}


def quantize(model):
    """Without the garbage collection for each kernel, slow where much is loaded."""
    gc.freeze()
    model.quantize("int8")
    gc.unfreeze()


def pixels(batch=B):
    return np.random.default_rng(1).integers(0, 256, (batch, H, W, C)).astype("uint8")


def floats(batch=B):
    return (pixels(batch) / 255).astype("float32")


def softmax(x):
    powers = np.exp(np.asarray(x, "float64"))
    return powers / powers.sum(axis=-1, keepdims=True)


# What goes in


@every_model
def test_bytes_are_shares_of_255_and_any_float_is_taken(models, name):
    model = models[name]
    images = floats(), floats().astype("float64"), floats().astype("float16"), pixels()
    expected, *found = run(FAST_MODE, lambda *images: [model(x) for x in images], *images)
    assert_close(found[0], expected)
    assert_close(found[1], expected, 0.003)  # 11 bits of the pixels
    assert_close(found[2], expected)
    assert np.abs(expected[0] - expected[1]).max() > 1e-3


@every_model
def test_other_integers_are_refused_with_the_way_out(models, name):
    with pytest.raises(TypeError, match=r'Received: int32. Convert them with `images.astype\("float32"\)`'):
        models[name](pixels().astype("int32"))


@every_model
def test_the_axis_that_grey_images_lack_is_named(models, name):
    kind, sizes = MODELS[name]
    for model in (models[name], kind(**sizes)):
        with pytest.raises(ValueError, match=r"\(batch, height, width, channels\).*\(2, 10, 13\).*images\[..., None\]"):
            model(floats()[..., 0])
    with pytest.raises(ValueError, match=r"`image_shape` must be \(channels, height, width\), without the batch"):
        kind(**sizes, data_format="channels_first", image_shape=(H, W))
    with pytest.raises(ValueError, match="known sizes above 0"):
        kind(**sizes, image_shape=(H, W, 0))


@every_model
def test_other_channels_than_the_first_images_had_are_an_error(models, name):
    with pytest.raises(
        ValueError, match=rf"{C}\), \(batch, height, width, channels\), .*`data_format` is channels_last"
    ):
        models[name](floats()[..., :1])


def test_images_without_channels_after_others():
    """TensorFlow then compiles for any rank, and the shape that came is not known; JAX asks `call` alone."""
    model = built("highway")
    model.predict(floats(), verbose=0)
    with pytest.raises(ValueError, match=r"images\[..., None\]"):
        model.predict(floats()[..., 0], verbose=0)


@every_model
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_images_that_are_no_numbers_give_nan_and_change_no_other_row(models, name, wrong):
    """Also where TensorFlow's relu and max-pool make numbers of them."""
    images = floats(3)
    images[1, 2, 3, 0] = wrong
    for mode in COMPILATIONS if name == "lenet" else [FAST_MODE]:
        found, features = run(mode, lambda x: (models[name](x), models[name](x, return_features=True)), images)
        for outputs in (found, features):
            np.testing.assert_array_equal(np.isnan(outputs).all(axis=1), [False, True, False])
            assert np.isfinite(outputs[[0, 2]]).all()


@every_model
def test_empty_images_are_refused(models, name):
    with pytest.raises(ValueError, match=r"must not be empty. Received: images of shape \(2, 0, 13, 3\)"):
        models[name](floats()[:, :0])


@every_model
@pytest.mark.parametrize("wrong", [(28.0, 28, 1), (28, "28", 1), (28, 28, 1.5), (28, True, 1), (28, 28, -1)])
def test_sizes_of_images_are_whole_numbers(name, wrong):
    kind, sizes = MODELS[name]
    with pytest.raises(ValueError, match="`image_shape` must be a positive integer"):
        kind(**sizes, image_shape=wrong)


@every_model
def test_integers_of_numpy_are_integers(name):
    kind, sizes = MODELS[name]
    number = np.int64
    arguments = {
        key: tuple(map(number, value)) if isinstance(value, tuple) else number(value) for key, value in sizes.items()
    }
    model = kind(**arguments, image_shape=(number(H), number(W), number(C)))
    assert json.loads(json.dumps(model.get_config())) == json.loads(
        json.dumps(kind(**sizes, image_shape=(H, W, C), name=model.name).get_config())
    )


@every_model
def test_channels_first_are_the_same_numbers(models, name):
    last, first = models[name], built(name, data_format="channels_first")
    first.set_weights(last.get_weights())
    found = run(FAST_MODE, lambda x, y: (first(x), last(y)), floats().transpose(0, 3, 1, 2), floats())
    assert_close(*found)
    assert first.batch_shape == (None, C, *((None, None) if name == "resnet" else (H, W)))
    assert last.batch_shape == (None, *((None, None) if name == "resnet" else (H, W)), C)


def test_keras_says_the_data_format(monkeypatch):
    monkeypatch.setattr(keras.config, "image_data_format", lambda: "channels_first")
    assert LeNet().data_format == "channels_first"
    assert LeNet(data_format="channels_last").data_format == "channels_last"


@every_model
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_classes": 0}, "`num_classes` must be a positive integer. Received: num_classes=0"),
        ({"data_format": "x"}, "`data_format` must be one of .* Received: data_format='x'"),
        (
            {"classifier_activation": "tanh"},
            r"must be one of \('softmax', None\). Received: classifier_activation='tanh'",
        ),
    ],
)
def test_wrong_arguments_are_errors(name, arguments, message):
    kind, sizes = MODELS[name]
    with pytest.raises(ValueError, match=message):
        kind(**{**sizes, **arguments})


# What comes out


@every_model
def test_logits_and_probabilities(models, name):
    logits_model = built(name, classifier_activation=None)
    logits, probabilities = run(FAST_MODE, lambda images: (logits_model(images), models[name](images)), floats())
    assert_close(probabilities, softmax(logits))
    assert_close(probabilities.sum(axis=1), np.ones(B))
    assert logits.min() < 0


SHAPES = {
    "lenet": ["(None, 8, 11, 2)", "(None, 4, 5, 2)", "(None, 2, 3, 3)", "(None, 1, 1, 3)", "(None, 5)", "(None, 4)"],
    "resnet": ["(None, 10, 13, 2)", "(None, 5, 7, 3)", "(None, 4)"],
    "highway": ["(None, 390)", "(None, 5)", "(None, 4)"],
}
CONVOLUTIONS = 27 * 2 + 2 * (9 * 2 * 2) + (9 * 2 * 3 + 9 * 3 * 3 + 2 * 3)  # stem, blocks, projection
COUNTS = {
    "lenet": (27 * 2 + 2) + (18 * 3 + 3) + (3 * 5 + 5) + (5 * 4 + 4),
    "resnet": CONVOLUTIONS + 4 * (3 * 2 + 3 * 3) + (3 * 4 + 4),
    "highway": (390 * 5 + 5) + 2 * (5 * 10 + 10) + (5 * 4 + 4),
}


@every_model
def test_summary_before_the_first_call(name):
    model, lines = built(name), []
    model.summary(line_length=100, print_fn=lines.append)
    text = "\n".join(lines)
    for shape in SHAPES[name]:
        assert shape in text, f"{shape} is not in\n{text}"
    assert "?" not in text and "unbuilt" not in text
    assert model.count_params() == COUNTS[name]
    assert f"{COUNTS[name]:,}" in text


@every_model
def test_symbolic_images(models, name):
    model = models[name]
    width = model.classifier.kernel.shape[0]
    for dtype in ("float32", "uint8"):
        images = keras.Input((H, W, C), dtype=dtype)
        for output, channels in ((model(images), CLASSES), (model(images, return_features=True), width)):
            assert output.shape == (None, channels) and output.dtype == "float32"
    assert model.compute_output_shape((7, H, W, C)) == (7, CLASSES)


@every_model
def test_half_precision_is_near_and_comes_out_as_float32(models, name):
    halves = [built(name, dtype=dtype) for dtype in ("mixed_float16", "mixed_bfloat16")]

    def outputs(images):
        return models[name](images), [(model(images), model(images, return_features=True)) for model in halves]

    exact, found = run(FAST_MODE, outputs, floats())
    # 11 and 8 bits of mantissa, in features up to 5
    for model, (probabilities, features), tolerance in zip(halves, found, (0.01, 0.08), strict=True):
        assert probabilities.dtype == np.float32
        assert keras.backend.standardize_dtype(features.dtype) == model.compute_dtype
        assert_close(probabilities, exact, tolerance)
        assert_close(probabilities.sum(axis=1), np.ones(B))  # which halves would not give


# Training


@every_model
def test_what_compile_means(name):
    for activation in ("softmax", None):
        model = MODELS[name][0](**MODELS[name][1], classifier_activation=activation)
        model.compile()
        assert type(model.optimizer) is SmoothedRMS
        assert model.optimizer.get_config() == SmoothedRMS(name=model.optimizer.name).get_config()
        assert type(model.loss) is keras.losses.SparseCategoricalCrossentropy
        assert model.loss.from_logits == (activation is None)
        assert model.get_compile_config()["metrics"] == ["accuracy"]
    model.compile("adam", "mse", metrics=None)
    assert isinstance(model.optimizer, keras.optimizers.Adam) and model.loss == "mse"


@every_model
def test_a_training_step(models, name):
    """Its loss is NumPy's, compiled by XLA or not, and both ways lead to the same weights."""
    labels, trained = np.array([3, 1]), []
    probabilities = run(FAST_MODE, lambda images: built(name)(images, training=True), floats())
    loss = -np.log(probabilities.astype("float64"))[np.arange(B), labels].mean()
    accuracy = (probabilities.argmax(axis=1) == labels).mean()
    for jit in [False, True] if BACKEND == "tensorflow" else ["auto"]:
        model = built(name)
        before = model.get_weights()
        model.compile(jit_compile=jit)
        assert_close(np.array(model.train_on_batch(pixels(), labels)), np.array([loss, accuracy]), 2e-6)
        trained.append(model.get_weights())
    # The first step divides each gradient by its own size, and with it the rounding of small ones.
    assert_close(trained[0], trained[-1], 1e-5)
    assert all(np.abs(after - weight).max() > 1e-3 for after, weight in zip(trained[0], before, strict=True))


def test_the_loss_of_logits(models):
    model = built("highway", classifier_activation=None)
    labels = np.arange(7) % CLASSES
    model.compile(jit_compile=JIT)
    loss, accuracy = model.evaluate(pixels(7), labels, batch_size=7, verbose=0)
    probabilities = run(FAST_MODE, models["highway"], floats(7)).astype("float64")
    assert_close(loss, float(-np.log(probabilities)[np.arange(7), labels].mean()), 2e-6)
    assert_close(accuracy, float((probabilities.argmax(axis=1) == labels).mean()))


@pytest.mark.parametrize("labels", [[0, CLASSES], [-1, 2]])
def test_labels_out_of_range_are_no_silent_rows(labels):
    """An error or NaN; Keras on JAX would leave them out of the loss."""
    for loss in ("auto", "sparse_categorical_crossentropy"):
        model = built("highway")
        model.compile(loss=loss, jit_compile=JIT)
        if BACKEND == "tensorflow":
            with pytest.raises(Exception, match="label value .* outside the valid range"):
                model.test_on_batch(floats(), np.array(labels))
        else:
            assert np.isnan(model.test_on_batch(floats(), np.array(labels), return_dict=True)["loss"])


def test_one_hot_labels():
    model, labels = built("highway"), np.eye(CLASSES, dtype="float32")[[3, 1]]
    model.compile(jit_compile=JIT)
    with pytest.raises(ValueError, match=r'class ids, of shape \(B,\).*compile\(loss="categorical_crossentropy"\)'):
        model.fit(floats(), labels, verbose=0)
    ids = built("highway")
    ids.compile(jit_compile=JIT)
    model.compile(loss="categorical_crossentropy", jit_compile=JIT)
    expected = ids.test_on_batch(floats(), np.array([3, 1]), return_dict=True)
    assert_close(model.test_on_batch(floats(), labels, return_dict=True), expected)


def test_what_is_thawed_after_compile_is_trained():
    model = built("highway")
    model.feature_layers[1].trainable = False
    model.compile(jit_compile=JIT)
    model.feature_layers[1].trainable = True
    before = to_numpy(model.feature_layers[1].kernel)
    model.train_on_batch(floats(), np.array([3, 1]))
    assert np.abs(to_numpy(model.feature_layers[1].kernel) - before).max() > 1e-4


# Configurations and files


@pytest.mark.parametrize(
    ("name", "argument"), [(name, argument) for name in MODELS for argument in {**OPTIONS[name], **SHARED}]
)
def test_arguments_survive_the_configuration(name, argument):
    kind, sizes = MODELS[name]
    value = {**OPTIONS[name], **SHARED}[argument]
    arguments = {**sizes, argument: value}
    if argument == "image_shape":
        arguments["data_format"] = "channels_first"
    default = kind(**sizes).get_config()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.initializers.VarianceScaling, "__call__", keras.initializers.Zeros().__call__)
        config = kind(**arguments).get_config()
        again = kind.from_config(json.loads(json.dumps(config)))
    assert again.get_config() == config
    assert config[argument] != default[argument]
    if argument not in ("dtype", "activation"):
        assert getattr(again, argument) == value


@every_model
def test_a_clone_has_the_configuration_and_weights_of_its_own(models, name):
    model = models[name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.initializers.VarianceScaling, "__call__", keras.initializers.Zeros().__call__)
        clone = keras.models.clone_model(model)
    assert type(clone) is type(model) and clone is not model
    assert clone.get_config() == model.get_config()
    assert [tuple(weight.shape) for weight in clone.weights] == [tuple(weight.shape) for weight in model.weights]
    assert not {id(weight) for weight in clone.weights} & {id(weight) for weight in model.weights}


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_saves_and_loads_in_a_fresh_process(tmp_path):
    """Every option, nesting, quantization, the state of the optimizer, weights alone."""
    saved = {name: built(name, **OPTIONS[name], classifier_activation=None) for name in MODELS}
    saved |= {f"{name}_int8": built(name) for name in MODELS}
    expected = {}
    for name in MODELS:
        exact = run(FAST_MODE, saved[f"{name}_int8"], floats())
        quantize(saved[f"{name}_int8"])
        expected[f"{name}_int8"] = run(FAST_MODE, saved[f"{name}_int8"], floats())
        # a step of 8 bits is 1/127 of the largest weight
        assert 0 < np.abs(expected[f"{name}_int8"] - exact).max() < 0.02
    inputs = keras.Input((H, W, C))
    nested = built("resnet")(keras.layers.Rescaling(1 / 255)(inputs))
    saved["nested"] = keras.Model(inputs, keras.layers.Dense(6, kernel_initializer="ones")(nested))
    saved["trained"] = built("resnet")
    saved["trained"].compile(jit_compile=JIT)
    saved["trained"].fit(floats(), np.array([3, 1]), verbose=0)
    for name, model in saved.items():
        model.save(tmp_path / f"{name}.keras")
        if name not in expected:
            expected[name] = run(FAST_MODE, model, floats() * 255 if name == "nested" else floats())
    for name in MODELS:
        saved[name].save_weights(tmp_path / f"{name}.weights.h5")
    saved["trained"].fit(floats(), np.array([3, 1]), verbose=0)
    expected["trained_on"] = run(FAST_MODE, saved["trained"], floats())
    np.savez(tmp_path / "expected.npz", images=floats(), **expected)
    configs = {name: model.get_config() for name, model in saved.items() if name != "nested"}
    (tmp_path / "configs.json").write_text(json.dumps(configs))
    assert fresh_process(LOADING, tmp_path).strip().endswith("all equal")


LOADING = """
    import gc, json, pathlib, sys
    import keras, numpy as np
    import keras_lt

    # What is loaded takes their place; JAX compiles an initializer for each shape.
    keras.initializers.VarianceScaling.__call__ = keras.initializers.Zeros().__call__
    gc.freeze()  # what quantized layers collect takes time for each object that is loaded
    folder = pathlib.Path(sys.argv[1])
    configs = json.loads((folder / "configs.json").read_text())
    expected = dict(np.load(folder / "expected.npz"))
    images = expected.pop("images")

    def check(name, model):
        given = images * 255 if name == "nested" else images
        model.run_eagerly = keras.backend.backend() == "tensorflow"
        actual = model.predict_on_batch(given)
        np.testing.assert_allclose(actual, expected[name], rtol=1e-6, atol=1e-6, err_msg=name)

    for name in expected:
        if name == "trained_on":
            continue
        model = keras.saving.load_model(folder / f"{name}.keras")
        check(name, model)
        if name in configs:
            assert json.loads(json.dumps(model.get_config())) == configs[name], name
        if (folder / f"{name}.weights.h5").exists():
            again = type(model).from_config(configs[name])
            again.load_weights(folder / f"{name}.weights.h5")
            for one, other in zip(again.get_weights(), model.get_weights(), strict=True):
                np.testing.assert_array_equal(one, other)
        if name == "trained":
            model.fit(images, np.array([3, 1]), verbose=0)
            check("trained_on", model)
    print("all equal")
"""


# Exports


# What formats could get wrong: the contraction over three axes, padded convolutions and pools with strides, the
# shortcut without weights, the split of a highway layer, the transposition of channels first.
EXPORTED = {
    "flattened": ("lenet", {}),
    "contraction": ("lenet", {"flatten": False, "classifier_activation": None}),
    "stages": ("resnet", {"stem": "large", "shortcut": "A"}),
    "highway": ("highway", {"data_format": "channels_first"}),
}
PAIRS = [
    ("tf_saved_model", "stages"),
    ("tf_saved_model", "contraction"),
    ("onnx", "stages"),
    ("onnx", "contraction"),
    ("onnx", "highway"),
    ("openvino", "stages"),
    ("litert", "stages"),
    ("litert", "flattened"),
    ("litert", "contraction"),
    ("litert", "highway"),
]


@needs_tensorflow
@pytest.mark.parametrize(("name", "form"), PAIRS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_export_gives_the_numbers_of_the_model(name, form, tmp_path):
    """For other batches than any that the export saw, which saw none; of a ResNet also for other image sizes."""
    kind, arguments = EXPORTED[form]
    model = built(kind, **arguments)
    call = exported(model, name, tmp_path)
    shapes = [(1, H, W, C), (3, H, W, C)]
    for shape in [*shapes, (2, 9, 16, C)] if kind == "resnet" else shapes:
        images = np.random.default_rng(4).normal(size=shape).astype("float32")
        if model.data_format == "channels_first":
            images = images.transpose(0, 3, 1, 2)
        assert_close(call(images=images), to_numpy(model(images)), 1e-5)


@needs_tensorflow
def test_what_cannot_be_exported_is_refused(tmp_path):
    with pytest.raises(ValueError, match="has no weights yet. Call it once, `fit` it, or make it with `image_shape`"):
        LeNet().export(str(tmp_path / "unbuilt"))
    with pytest.raises(ValueError, match="is for float32. Received: a model whose compute dtype is bfloat16"):
        built("highway", dtype="mixed_bfloat16").export(str(tmp_path / "half.onnx"), format="onnx")
