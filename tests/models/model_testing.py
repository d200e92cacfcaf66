"""What the tests of the models share: small models, every option, the laws of decoding, exports."""

import importlib.util

import keras
import numpy as np
import pytest

from keras_lt.models import LittleTransformer
from testing import assert_close, compiled, to_numpy

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


def small(**arguments):
    """A model whose sizes all differ, with weights large enough for every part to matter."""
    sizes = {"vocabulary_size": 23, "max_sequence_length": 13, "num_layers": 2, "num_heads": 3, "hidden_dim": 12}
    keras.utils.set_random_seed(1)
    with pytest.MonkeyPatch.context() as patch:
        if keras.backend.backend() == "jax":  # which compiles an initializer for each shape; NumPy draws weights below
            patch.setattr(keras.initializers.VarianceScaling, "__call__", keras.initializers.Zeros().__call__)
            patch.setattr(keras.initializers.RandomNormal, "__call__", keras.initializers.Zeros().__call__)
        model = LittleTransformer(**{**sizes, "embeddings_initializer": "random_normal", **arguments})
    generator = np.random.default_rng(2)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(np.asarray(weight) + 0.3 * generator.standard_normal(weight.shape))
    return model


def random_ids(*shape, vocabulary_size=23, low=1):
    return np.random.default_rng(3).integers(low, vocabulary_size, shape).astype("int32")


def log_softmax(x):
    x = np.asarray(x, "float64")
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


def uncached_logits(model, row):
    """The logits after each prefix of a sequence, as plain calls of the model on all that it may look at give them."""
    limit = model.max_sequence_length or len(row)
    logits = [to_numpy(model(row[None, :limit]))[0].astype("float32")]
    if len(row) > limit:
        windows = np.stack([row[start : start + limit] for start in range(1, len(row) - limit + 1)])
        logits.append(to_numpy(model(windows))[:, -1].astype("float32"))
    return np.concatenate(logits)


def check_generation(model, prompts, max_new_tokens, tolerance=1e-5):
    """Laws 1, 2 and 4: greedy generation in a batch, in either order, equals plain calls on each sequence alone."""
    for order in (prompts, prompts[::-1]):
        rows, log_probs = model.generate(order, max_new_tokens, return_log_probs=model.vocabulary_size)
        for prompt, row, found in zip(order, rows, log_probs, strict=True):
            np.testing.assert_array_equal(row[: len(prompt)], prompt)
            assert len(row) == len(prompt) + max_new_tokens
            expected = log_softmax(uncached_logits(model, row[:-1])[len(prompt) - 1 :])
            likeliest = np.sort(expected, axis=-1)
            assert (likeliest[:, -1] - likeliest[:, -2]).min() > 10 * tolerance, "the choice hangs on rounding"
            np.testing.assert_array_equal(row[len(prompt) :], expected.argmax(-1))
            assert_close(np.take_along_axis(expected, found["top_ids"], axis=1), found["top"], tolerance)
            assert_close(found["chosen"], expected.max(-1), tolerance)


def check_cache(mode, model, ids, tolerance=1e-5):
    """Laws 1 and 3 on the protocol itself: pieces of unequal lengths, then single tokens, then several at once."""
    num_rows, length = ids.shape
    starts = np.arange(num_rows, dtype="int32") % 3 + 1

    def decode(ids, starts):
        cache = model.build_cache(num_rows, length)
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
    whole = to_numpy(model(ids))
    for row, start in enumerate(starts):
        assert_close(first[row, :start], whole[row, :start], tolerance)
        assert_close(second[row], whole[row, start : start + 1], tolerance)
        assert_close(third[row], whole[row, start + 1 : start + 4], tolerance)
    changed = np.where(np.arange(length) > starts[:, None], ids[:, ::-1] % (model.vocabulary_size - 1) + 1, ids)
    np.testing.assert_array_equal(pieces(changed, starts)[1], second)
    assert np.abs(pieces(changed, starts)[2] - third).max() > 0


# The suffix of each format's files, and the libraries that write and run it.
FORMATS = {
    "tf_saved_model": ("", ()),
    "onnx": (".onnx", ("onnx", "onnxruntime", "tf2onnx")),
    "openvino": (".xml", ("openvino", "scipy")),
    "litert": (".tflite", ("ai_edge_litert",)),
}


def exported(model, name, folder, input_name):
    """The model exported to a format: a function of an array, run by the library the format is for."""
    suffix, libraries = FORMATS[name]
    missing = [library for library in libraries if importlib.util.find_spec(library) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    path = str(folder / f"model{suffix}")
    model.export(path, format=name, verbose=False)
    if name == "tf_saved_model":
        import tensorflow as tf

        signature = tf.saved_model.load(path).signatures["serving_default"]
        return lambda array: next(iter(signature(**{input_name: tf.constant(array)}).values())).numpy()
    if name == "onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(path)
        return lambda array: session.run(None, {input_name: array})[0]
    if name == "openvino":
        import openvino

        # On a CPU that has bfloat16, OpenVINO would compute in it.
        settings = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": 1}
        compiled_model = openvino.Core().compile_model(path, "CPU", settings)
        return lambda array: compiled_model({input_name: array})[0]
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(path)
    (given,) = interpreter.get_input_details()

    def call(array):
        interpreter.resize_tensor_input(given["index"], array.shape)
        interpreter.allocate_tensors()
        interpreter.set_tensor(given["index"], array)
        interpreter.invoke()
        return interpreter.get_tensor(interpreter.get_output_details()[0]["index"])

    return call
