"""What the tests of the models share: small models, every option, the laws of decoding, exports."""

import contextlib
import importlib.util
import json

import keras
import numpy as np
import pytest

from keras_lt.models import LittleTransformer, RecurrentLM
from testing import BACKEND, assert_close, compiled, fresh_process, run, to_numpy

# The quickest one that a model runs in: JAX has nothing between XLA and one op a time, each of which it compiles.
FAST_MODE = "jit" if BACKEND == "jax" else "eager"

# One option each, at a value that is not the default.
OPTIONS = {
    "vocabulary_size": 29,
    "max_sequence_length": 19,
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 24,
    "head_dim": 6,
    "num_key_value_heads": 1,
    "intermediate_dim": 17,
    "activation": "gelu",
    "gated": True,
    "norm_first": False,
    "position": "rotary",
    "window_size": 3,
    "scale_embeddings": True,
    "tie_embeddings": True,
    "attention_bias": True,
    "feed_forward_bias": False,
    "dropout": 0.3,
    "layer_norm_epsilon": 1e-3,
    "mask_zero": True,
    "embeddings_initializer": keras.initializers.RandomNormal(stddev=0.3, seed=5),
    "kernel_initializer": keras.initializers.HeNormal(seed=3),
    "bias_initializer": "ones",
    "seed": 7,
}


# Of the models that read a source; the ids of both kinds of small models hold them.
MARKS = {"start_token_id": 9, "end_token_id": 10}


@contextlib.contextmanager
def without_initializers():
    """On JAX, which compiles an initializer for each shape, weights are 0: for who draws or needs none."""
    with pytest.MonkeyPatch.context() as patch:
        if BACKEND == "jax":
            for kind in ("VarianceScaling", "RandomNormal", "Orthogonal"):
                patch.setattr(getattr(keras.initializers, kind), "__call__", keras.initializers.Zeros().__call__)
        yield


def small(model_class=LittleTransformer, **arguments):
    """A Transformer whose sizes all differ, with weights large enough for every part to matter."""
    sizes = {"vocabulary_size": 23, "max_sequence_length": 13, "num_layers": 2, "num_heads": 3, "hidden_dim": 12}
    sizes |= MARKS if getattr(model_class, "reads_source", False) else {}
    keras.utils.set_random_seed(1)
    with without_initializers():
        model = model_class(**{**sizes, "embeddings_initializer": "random_normal", **arguments})
    generator = np.random.default_rng(2)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(np.asarray(weight) + 0.3 * generator.standard_normal(weight.shape))
    return model


def recurrent(cell="lstm", scale=0.7, model_class=RecurrentLM, **arguments):
    """A recurrent model whose sizes all differ, with weights large enough for every part to matter, drawn by NumPy."""
    sizes = {"vocabulary_size": 11, "hidden_dim": 6, "num_layers": 2, **(MARKS if model_class.reads_source else {})}
    zeros = dict.fromkeys(("embeddings_initializer", "kernel_initializer", "recurrent_initializer"), "zeros")
    model = model_class(cell=cell, **{**sizes, **zeros, **arguments})
    generator = np.random.default_rng(2)
    for weight in model.weights:
        weight.assign(scale * generator.standard_normal(weight.shape))
    return model


def random_ids(*shape, vocabulary_size=23, low=1):
    return np.random.default_rng(3).integers(low, vocabulary_size, shape).astype("int32")


def log_softmax(x):
    x = np.asarray(x, "float64")
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def with_source(source, ids):
    """The inputs of a model: ids of shape `(B, T)`, and what it reads beside each row."""
    return ids if source is None else {"source": source, "target": ids}


def uncached_logits(model, row, source=None):
    """The logits after each prefix of a sequence, as plain calls of the model on all that it may look at give them."""
    limit = model.max_sequence_length or len(row)

    def logits(rows):
        sources = None if source is None else np.tile(source, (len(rows), 1))
        return run(FAST_MODE, model, with_source(sources, rows)).astype("float32")

    found = [logits(row[None, :limit])[0]]
    if len(row) > limit:
        found.append(logits(np.stack([row[start : start + limit] for start in range(1, len(row) - limit + 1)]))[:, -1])
    return np.concatenate(found)


def check_generation(model, prompts, max_new_tokens, tolerance=1e-5, sources=None):
    """Laws 1, 2 and 4: greedy generation in a batch, in either order, equals plain calls on each sequence alone."""
    settings = {"stop_token_ids": [], "return_log_probs": model.vocabulary_size}
    expected = []
    for step in (1, -1):
        read = None if sources is None else sources[::step]
        rows, log_probs = model.generate(with_source(read, prompts[::step]), max_new_tokens, **settings)
        for number, (row, found) in enumerate(zip(rows[::step], log_probs[::step], strict=True)):
            prompt, source = prompts[number], None if sources is None else sources[number]
            if step == 1:
                expected.append(log_softmax(uncached_logits(model, row[:-1], source)[len(prompt) - 1 :]))
                likeliest = np.sort(expected[number], axis=-1)
                assert (likeliest[:, -1] - likeliest[:, -2]).min() > 10 * tolerance, "the choice hangs on rounding"
            np.testing.assert_array_equal(row, [*prompt, *expected[number].argmax(-1)])
            assert len(row) == len(prompt) + max_new_tokens
            assert_close(np.take_along_axis(expected[number], found["top_ids"], axis=1), found["top"], tolerance)
            assert_close(found["chosen"], expected[number].max(-1), tolerance)


def check_cache(mode, model, ids, tolerance=1e-5, source=None):
    """Laws 1 and 3 on the protocol itself: pieces of unequal lengths, then single tokens, then several at once."""
    num_rows, length = ids.shape
    starts = np.arange(num_rows, dtype="int32") % 3 + 1
    read = {} if source is None else {"source": source}

    def decode(ids, starts):
        cache = model.build_cache(num_rows, length, **read)
        first, cache = model.call_with_cache(ids[:, :4], cache, 0, lengths=starts)
        tokens = keras.ops.take_along_axis(ids, starts[:, None], axis=1)
        second, cache = model.call_with_cache(tokens, cache, starts)
        places = starts[:, None] + 1 + keras.ops.arange(3, dtype="int32")
        third, cache = model.call_with_cache(keras.ops.take_along_axis(ids, places, axis=1), cache, starts + 1)
        return first, second, third

    call = compiled(mode, decode, (ids, starts))

    def pieces(ids, starts):
        return to_numpy(call([keras.ops.convert_to_tensor(ids), keras.ops.convert_to_tensor(starts)]))

    first, second, third = pieces(ids, starts)
    whole = run(mode, model, with_source(source, ids))
    for row, start in enumerate(starts):
        assert_close(first[row, :start], whole[row, :start], tolerance)
        assert_close(second[row], whole[row, start : start + 1], tolerance)
        assert_close(third[row], whole[row, start + 1 : start + 4], tolerance)
    changed = np.where(np.arange(length) > starts[:, None], ids[:, ::-1] % (model.vocabulary_size - 1) + 1, ids)
    np.testing.assert_array_equal(pieces(changed, starts)[1], second)
    assert np.abs(pieces(changed, starts)[2] - third).max() > 0


def check_reload(folder, models, inputs, generator=None, texts=()):
    """A fresh process loads the models: the same logits; of a `TextGenerator` the same texts."""
    inputs = inputs if isinstance(inputs, dict) else {"token_ids": inputs}
    for name, model in models.items():
        model.save(folder / f"{name}.keras")
    logits = run(FAST_MODE, lambda inputs: {name: model(inputs) for name, model in models.items()}, inputs)
    np.savez(folder / "inputs.npz", **inputs)
    np.savez(folder / "logits.npz", **{name: array.astype("float32") for name, array in logits.items()})
    said = None
    if generator is not None:
        generator.save(folder / "generator")
        said = [list(texts), generator.generate(list(texts), 9)]
    (folder / "said.json").write_text(json.dumps(said))
    output = fresh_process(
        """
        import json, pathlib, sys
        import keras, numpy as np
        import keras_lt

        folder = pathlib.Path(sys.argv[1])
        inputs = dict(np.load(folder / "inputs.npz"))
        for name, expected in np.load(folder / "logits.npz").items():
            model = keras.saving.load_model(folder / f"{name}.keras")
            actual = np.asarray(keras.ops.convert_to_numpy(model(inputs))).astype("float32")
            # What was compiled before is not compiled here.
            np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5, err_msg=name)
            print(name, type(model).__name__)
        said = json.loads((folder / "said.json").read_text())
        if said:
            texts, expected = said
            assert keras_lt.TextGenerator.load(folder / "generator").generate(texts, 9) == expected, expected
        """,
        folder,
    )
    for name, model in models.items():
        assert f"{name} {type(model).__name__}" in output


# The suffix of each format's files, and the libraries that write and run it.
FORMATS = {
    "tf_saved_model": ("", ()),
    "onnx": (".onnx", ("onnx", "onnxruntime", "tf2onnx")),
    "openvino": (".xml", ("openvino", "scipy")),
    "litert": (".tflite", ("ai_edge_litert",)),
}


def exported(model, name, folder):
    """The model exported to a format: a function of arrays by name, run by the library the format is for."""
    suffix, libraries = FORMATS[name]
    missing = [library for library in libraries if importlib.util.find_spec(library) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    path = str(folder / f"model{suffix}")
    model.export(path, format=name, verbose=False)
    if name == "tf_saved_model":
        import tensorflow as tf

        signature = tf.saved_model.load(path).signatures["serving_default"]
        return lambda **arrays: next(iter(signature(**keras.tree.map_structure(tf.constant, arrays)).values())).numpy()
    if name == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        return lambda **arrays: session.run(None, arrays)[0]
    if name == "openvino":
        import openvino

        # On a CPU that has bfloat16, OpenVINO would compute in it.
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        compiled_model = openvino.Core().compile_model(path, "CPU", settings)
        return lambda **arrays: compiled_model(arrays)[0]
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path)
    places = {
        given["name"].split("_", 2)[-1].split(":")[0]: given["index"] for given in interpreter.get_input_details()
    }

    def call(**arrays):
        for key, array in arrays.items():
            interpreter.resize_tensor_input(places[key], array.shape)
        interpreter.allocate_tensors()
        for key, array in arrays.items():
            interpreter.set_tensor(places[key], array)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    return call
