"""What every layer made of other layers owes to Keras: configurations, files, dtype policies, quantization, LoRA."""

import inspect
import json

import keras
import numpy as np
import pytest

import keras_lt.layers
from keras_lt.layers import (
    CausalMultiHeadAttention,
    CrossAttention,
    FeedForward,
    Highway,
    ResidualBlock,
    TokenPositionEmbedding,
    TransformerBlock,
)
from keras_lt.layers.composite_layer import check_shape, pack_results, unpack_results
from layer_testing import quantize
from testing import BACKEND, assert_close, fresh_process

B, T, S, D, C, V = 3, 5, 4, 12, 10, 17
ATTENTION = {
    "num_heads": 3,
    "head_dim": 4,
    "num_key_value_heads": 1,
    "use_bias": True,
    "dropout": 0.3,
    "kernel_initializer": "he_normal",
    "bias_initializer": "ones",
    "seed": 5,
}
BLOCK = {name: value for name, value in ATTENTION.items() if name != "use_bias"}
# For each class what it needs, and for each argument a value that is not its default.
ARGUMENTS = {
    CausalMultiHeadAttention: ({"num_heads": 2}, {**ATTENTION, "window_size": 2, "rotary": True}),
    CrossAttention: ({"num_heads": 2}, ATTENTION),
    FeedForward: (
        {},
        {
            **{
                "intermediate_dim": 7,
                "activation": "silu",
                "gated": True,
                "use_bias": False,
                "dropout": 0.3,
                "seed": 5,
            },
            **{"kernel_initializer": "he_normal", "bias_initializer": "ones"},
        },
    ),
    Highway: (
        {},
        {
            **{"activation": "tanh", "transform_gate_bias": -1.5},
            **{"kernel_initializer": "he_normal", "bias_initializer": "ones"},
        },
    ),
    ResidualBlock: (
        {"filters": 3},
        {
            **{"filters": D, "strides": 2, "shortcut": "C", "bottleneck": True, "kernel_size": 2},
            **{"data_format": "channels_first", "kernel_initializer": "glorot_uniform"},
        },
    ),
    TokenPositionEmbedding: (
        {"vocabulary_size": V, "max_sequence_length": 8, "hidden_dim": D},
        {
            **{"vocabulary_size": V + 2, "max_sequence_length": 9, "hidden_dim": 6, "position": "sinusoidal"},
            **{"scale": True, "mask_zero": True, "embeddings_initializer": "he_normal"},
        },
    ),
    TransformerBlock: (
        {"num_heads": 2},
        {
            **{**BLOCK, "intermediate_dim": 7, "activation": "gelu", "gated": True, "norm_first": False},
            **{"causal": False, "window_size": 2, "rotary": True, "attention_bias": True, "feed_forward_bias": False},
            **{"layer_norm_epsilon": 0.01},
        },
    ),
}
KEYWORDS = {"name": "another_name", "trainable": False, "dtype": "mixed_bfloat16"}
CASES = [
    (kind, argument, value)
    for kind, (_, values) in ARGUMENTS.items()
    for argument, value in {**values, **KEYWORDS}.items()
]

every_class = pytest.mark.parametrize("kind", ARGUMENTS)
every_case = pytest.mark.parametrize(
    ("kind", "argument", "value"), CASES, ids=[f"{kind.__name__}-{argument}" for kind, argument, _ in CASES]
)


def make(kind, **arguments):
    return kind(**{**ARGUMENTS[kind][0], **arguments})


def built(layer):
    shapes = [(None, None, D)]
    if isinstance(layer, CrossAttention):
        shapes.append((None, None, C))
    if isinstance(layer, ResidualBlock):
        shapes = [(None, 6, 7, D)]
    layer.build(*([(None, None)] if isinstance(layer, TokenPositionEmbedding) else shapes))
    return layer


def symbolic_inputs():
    return [keras.Input((None,), name="ids"), keras.Input((None, D), name="x"), keras.Input((None, C), name="context")]


def call(layer, ids, x, context):
    if isinstance(layer, TokenPositionEmbedding):
        return layer(ids)
    if isinstance(layer, ResidualBlock):
        x = keras.ops.expand_dims(x, 1)  # an image of one row
    return layer(x, context) if isinstance(layer, CrossAttention) else layer(x)


def example():
    random = np.random.default_rng(0)
    x, context = (random.normal(size=shape).astype("float32") for shape in ((B, T, D), (B, S, C)))
    return [random.integers(0, V, (B, T)).astype("float32"), x, context]


# Configurations


def test_the_table_has_every_class_and_argument():
    public = {thing for thing in vars(keras_lt.layers).values() if inspect.isclass(thing)}
    assert public == set(ARGUMENTS)
    for kind, (_, values) in ARGUMENTS.items():
        own = inspect.signature(kind).parameters
        assert set(values) == {name for name in own if name not in ("args", "kwargs")}


@every_case
def test_arguments_survive_the_configuration(kind, argument, value):
    layer = make(kind, **{argument: value})
    config = layer.get_config()

    copy = kind.from_config(json.loads(json.dumps(config)))

    assert type(copy) is kind
    assert copy.get_config() == config
    assert config[argument] != make(kind).get_config()[argument]
    if isinstance(value, (int, float)):
        assert getattr(copy, argument) == value


@every_case
def test_arguments_survive_the_configuration_of_a_built_layer(kind, argument, value):
    layer = make(kind, **{argument: value})
    before = layer.get_config()
    assert built(layer).get_config() == before


@every_class
def test_unknown_arguments_are_refused(kind):
    with pytest.raises((TypeError, ValueError), match="nonsense"):
        make(kind, nonsense=3)


# Keywords of every Keras layer


@every_class
@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float16"])
def test_the_dtype_policy_reaches_every_inner_layer(kind, dtype):
    layer = built(make(kind, dtype=dtype))
    policy = keras.dtype_policies.get(dtype)
    assert {inner.dtype_policy.name for inner in layer._flatten_layers()} == {dtype}
    weights = [variable for variable in layer.weights if "seed" not in variable.path]
    assert {variable.dtype for variable in weights} == {policy.variable_dtype}


@every_class
def test_a_frozen_layer_is_frozen_inside_a_model(kind):
    inputs, frozen = symbolic_inputs(), make(kind, trainable=False)
    model = keras.Model(inputs, keras.layers.Dense(2)(call(frozen, *inputs)))
    assert len(model.trainable_variables) == 2
    assert len(model.weights) == 2 + len(frozen.weights)

    frozen.trainable = True

    thawed = built(make(kind))
    assert len(model.trainable_variables) == 2 + len(thawed.trainable_variables)


def test_nothing_says_quantization_without_one():
    for kind in ARGUMENTS:
        assert "quantization" not in built(make(kind)).get_config()


# Files. Starting a process takes seconds: one process loads every file, computes, saves and loads once more.

COMPUTE = """
import keras, numpy as np

def compute(model, inputs):
    call = lambda inputs: keras.tree.flatten(model(inputs))
    if keras.backend.backend() == "jax":  # its eager mode compiles each operation alone
        import jax

        call = jax.jit(call)
    return [np.asarray(keras.ops.convert_to_numpy(output)).astype("float32") for output in call(inputs)]
"""
LOAD_AND_COMPUTE = f"""
{COMPUTE}
import gc, sys
import keras_lt
gc.freeze()  # Keras collects garbage for each kernel it quantizes
folder, *names = sys.argv[1:]
inputs = dict(np.load(f"{{folder}}/inputs.npz"))
inputs = [inputs[name] for name in ("ids", "x", "context")]
results = {{}}
for name in names:
    name, _, again = name.partition(":")
    model = keras.saving.load_model(f"{{folder}}/{{name}}.keras")
    if again:
        model.save(f"{{folder}}/{{name}}_again.keras")
        model = keras.saving.load_model(f"{{folder}}/{{name}}_again.keras")
    for number, output in enumerate(compute(model, inputs)):
        results[f"{{name}}/{{number}}"] = output
    results[f"{{name}}/trainable"] = len(model.trainable_variables)
np.savez(f"{{folder}}/outputs.npz", **results)
"""
# What Keras saves does not hang on the backend, and JAX compiles seconds for each model: there not all of them.
MODES = ["int8"] if BACKEND == "jax" else ["int8", "int4", "float8"]
QUANTIZED = [*MODES, "nested_int8"]


# Weights come from NumPy: on JAX Keras's initializers compile a program for each shape.
ZEROS = {"kernel_initializer": "zeros"}


def zeros(kind):
    return {"embeddings_initializer": "zeros"} if kind is TokenPositionEmbedding else ZEROS


def with_drawn_weights(model):
    random = np.random.default_rng(3)
    for variable in model.trainable_variables + model.non_trainable_variables:
        if "seed" not in variable.path:
            values = random.normal(0, 0.3, variable.shape)
            variable.assign(abs(values) if "moving_variance" in variable.path else values)
    return model


def every_case_model():
    """One model of a layer for every argument that is not its default; on JAX of a sample."""
    inputs = symbolic_inputs()
    cases = [case for case in CASES if case[1] != "name"][:: 9 if BACKEND == "jax" else 1]
    layers = [make(kind, **{**zeros(kind), argument: value}) for kind, argument, value in cases]
    return with_drawn_weights(keras.Model(inputs, [call(layer, *inputs) for layer in layers]))


def mixed_model():
    """A model of every layer in a row, with biases, groups of heads, a gate and cross-attention in a decoder block."""
    inputs = ids, x, context = symbolic_inputs()
    y = make(TokenPositionEmbedding, **zeros(TokenPositionEmbedding))(ids) + x
    layer = make(TransformerBlock, num_key_value_heads=1, gated=True, attention_bias=True, name="block", **ZEROS)
    y = layer(y, context)
    y = CausalMultiHeadAttention(6, num_key_value_heads=2, use_bias=True, name="causal", **ZEROS)(y)
    y = CrossAttention(3, use_bias=True, **ZEROS)(y, context=context)
    return with_drawn_weights(keras.Model(inputs, FeedForward(**ZEROS)(y)))


def models():
    result = {"every_case": every_case_model(), "float": mixed_model()}
    for mode in MODES:
        result[mode] = mixed_model()
        quantize(result[mode], mode)
    inputs = symbolic_inputs()
    result["nested_int8"] = keras.Model(inputs, result["int8"](inputs) * 2)
    result["lora"] = mixed_model()
    for projection in lora_projections(result["lora"]):
        projection.enable_lora(2)
        projection.lora_kernel_b.assign(np.random.default_rng(4).normal(size=projection.lora_kernel_b.shape))
    result["frozen"] = mixed_model()
    result["frozen"].get_layer("block").trainable = False
    return result


def lora_projections(model):
    block, causal = model.get_layer("block"), model.get_layer("causal")
    inner = [block.feed_forward.intermediate, block.cross_attention.key_value, block.attention.output_projection]
    return [causal.query_key_value, *inner]


NAMES = ["every_case", "float", *QUANTIZED, "lora", "frozen"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Outputs and numbers of trainable variables, before saving and after loading in a fresh process.

    The quantized models are there saved again and loaded again before they compute.
    """
    folder = tmp_path_factory.mktemp("files")
    np.savez(folder / "inputs.npz", **dict(zip(("ids", "x", "context"), example(), strict=True)))
    namespace, before = {}, {}
    exec(COMPUTE, namespace)
    for name, model in models().items():
        before[name] = namespace["compute"](model, example()), len(model.trainable_variables)
        model.save(folder / f"{name}.keras")
    fresh_process(LOAD_AND_COMPUTE, folder, *(f"{name}:again" if name in QUANTIZED else name for name in NAMES))
    return before, dict(np.load(folder / "outputs.npz"))


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_model_loads_in_a_fresh_process_and_computes_the_same(files, name):
    before, after = files
    outputs, trainable = before[name]
    for number, output in enumerate(outputs):
        # A file keeps the sum of a kernel and its LoRA, which is a kernel like any other, rounded once more.
        assert_close(after[f"{name}/{number}"], output, 1e-5 if name == "lora" else 0)
        assert np.isfinite(output).all()
    if name != "lora":
        assert after[f"{name}/trainable"] == trainable


@pytest.mark.parametrize("name", MODES)
def test_a_quantized_model_is_near_the_float_one(files, name):
    (exact,), (output,) = files[0]["float"][0], files[0][name][0]
    error = np.abs(output - exact).max() / np.abs(exact).max()
    assert 0 < error < {"int8": 0.05, "int4": 0.6, "float8": 0.4}[name]
    assert_close(files[0]["nested_int8"][0][0], 2 * files[0]["int8"][0][0])


# Parts


def test_results_are_packed_in_one_order():
    assert pack_results("output", None, None) == "output"
    assert pack_results("output", "scores", None) == ("output", "scores")
    assert pack_results("output", None, "cache") == ("output", "cache")
    assert pack_results("output", "scores", "cache") == ("output", "scores", "cache")
    for scores in (None, "scores"):
        for cache in (None, "cache"):
            packed = pack_results("output", scores, cache)
            assert unpack_results(packed, scores is not None, cache is not None) == ("output", scores, cache)


def test_check_shape():
    check_shape("x", None, (2, 3))
    check_shape("x", np.zeros((2, 3)), (2, 3))
    check_shape("x", np.zeros((2, 3)), (None, 3))
    check_shape("x", keras.Input((3,)), (2, 3))
    check_shape("x", 5, (), (2,))
    check_shape("x", [5, 6], (), (2,))
    for value, shape in ((np.zeros((2, 3)), (2, 3)), ([1, 2, 3], (3,))):
        with pytest.raises(ValueError, match=r"`x` must have the shape \(\) or \(2,\). Received: x.shape=") as error:
            check_shape("x", value, (), (2,))
        assert str(shape) in str(error.value)
