"""What the tests of the layers share: the sources' equations in NumPy (float64, loops, nothing of keras_lt in them),
the weights of a layer in the form they want, and functions that are compiled once and called often.
"""

import functools
import gc
import inspect

import keras
import numpy as np

from testing import BACKEND, MODES, compiled, to_numpy

# On JAX eager mode runs what jit runs, with each operation compiled alone: seconds a test, so few tests use it.
LEAN_MODES = [mode for mode in MODES if (BACKEND, mode) != ("jax", "eager")]
FAST_MODE = LEAN_MODES[0]
# The low-precision policies, each in one mode: compiled ones are where fused operations could keep other precisions.
LOW_PRECISION = [
    ("float16", LEAN_MODES[0]),
    ("mixed_bfloat16", LEAN_MODES[0]),
    ("bfloat16", LEAN_MODES[-1]),
    ("mixed_float16", LEAN_MODES[-1]),
]


def compile_once(mode, function, *example):
    """`function` compiled in one of `MODES`; `example` shows the structure of its arguments, all of them arrays."""
    call = compiled(mode, function, example)
    return lambda *args: to_numpy(call([keras.ops.convert_to_tensor(leaf) for leaf in keras.tree.flatten(args)]))


def cached(function):
    """`functools.cache` to which a default and the same value passed are one."""
    signature, cached_function = inspect.signature(function), functools.cache(function)

    def call(*args):
        bound = signature.bind(*args)
        bound.apply_defaults()
        return cached_function(*bound.args)

    return call


class NumPyNormal(keras.initializers.Initializer):
    """Draws with NumPy: Keras's initializers compile a program for each shape on JAX, half a second each."""

    def __init__(self, stddev=0.3, seed=0):
        self.stddev, self.random = stddev, np.random.default_rng(seed)

    def __call__(self, shape, dtype=None):
        return keras.ops.convert_to_tensor(self.random.normal(0, self.stddev, shape), dtype)


def drawn(kind, *args, **arguments):
    """A layer of keras_lt with weights from NumPy, no bias 0."""
    return kind(*args, kernel_initializer=NumPyNormal(), bias_initializer=NumPyNormal(0.5, seed=1), **arguments)


def masking_embedding(size, width):
    """A built `keras.layers.Embedding` whose implicit mask says that id 0 is padding."""
    embedding = keras.layers.Embedding(size, width, embeddings_initializer=NumPyNormal(), mask_zero=True)
    embedding.build((None, None))
    return embedding


def quantize(model, mode):
    """`model.quantize(mode)`, without the garbage collection for each kernel, slow where much is loaded."""
    gc.freeze()
    model.quantize(mode)
    gc.unfreeze()


def float64(tensor):
    return np.asarray(to_numpy(tensor)).astype("float64")


def softmax(x):
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def causal(length, key_length, start=0, window=None):
    """S1's `M` and S3's `causal_mask`, True where it leaves the score alone; with a window only the nearest keys."""
    visible = np.zeros((length, key_length), bool)
    for query in range(length):
        for key in range(key_length):
            distance = start + query - key
            visible[query, key] = distance >= 0 and (window is None or distance < window)
    return visible


def rotary(x, positions):
    """`x` is `(T, H)`: element i and element i + H/2 are turned by position / 10000^(2i/H)."""
    half = x.shape[1] // 2
    result = np.empty_like(x)
    for t, position in enumerate(positions):
        for i in range(half):
            angle = position / 10000 ** (2 * i / x.shape[1])
            first, second = x[t, i], x[t, i + half]
            result[t, i] = first * np.cos(angle) - second * np.sin(angle)
            result[t, i + half] = second * np.cos(angle) + first * np.sin(angle)
    return result


def multi_head_attention(weights, inputs, context, visible, query_positions=None, key_positions=None):
    """S1's `SelfAtt` and S3's `multi_heads_attention` for queries `(B, T, D)`, keys and values from `(B, S, C)`.

    `visible` broadcasts to `(B, N, T, S)`. Positions, where given, are those of rotary heads. Returns the output and
    the weights after the softmax.
    """
    num_heads, num_key_heads = len(weights["query"]), len(weights["key"])
    batch_size, length, key_length = len(inputs), inputs.shape[1], context.shape[1]
    visible = np.broadcast_to(visible, (batch_size, num_heads, length, key_length))
    output = np.zeros((batch_size, length, weights["output"].shape[2])) + weights.get("output_bias", 0.0)
    scores = np.zeros((batch_size, num_heads, length, key_length))
    for b in range(batch_size):
        for head in range(num_heads):
            key_head = head * num_key_heads // num_heads
            query, key, value = (
                x @ weights[name][number] + (weights[f"{name}_bias"][number] if f"{name}_bias" in weights else 0.0)
                for name, x, number in (
                    ("query", inputs[b], head),
                    ("key", context[b], key_head),
                    ("value", context[b], key_head),
                )
            )
            if query_positions is not None:
                query, key = rotary(query, query_positions), rotary(key, key_positions)
            products = query @ key.T / np.sqrt(query.shape[1])
            for t in range(length):
                seen = visible[b, head, t]
                if seen.any():
                    scores[b, head, t, seen] = softmax(products[t, seen])
            output[b] += scores[b, head] @ value @ weights["output"][head]
    return output, scores


def attention_weights(layer):
    """The kernels of an attention layer in the sources' shapes, and its biases, one row a head."""
    weights = {name: float64(getattr(layer, f"{name}_kernel")) for name in ("query", "key", "value", "output")}
    if layer.use_bias:
        projections = [layer.query_key_value] if hasattr(layer, "query_key_value") else [layer.query, layer.key_value]
        biases = np.concatenate([float64(projection.bias) for projection in projections])
        biases = biases.reshape(-1, weights["query"].shape[-1])
        num_heads, num_key_heads = len(weights["query"]), len(weights["key"])
        borders = [num_heads, num_heads + num_key_heads]
        weights.update(zip(("query_bias", "key_bias", "value_bias"), np.split(biases, borders), strict=True))
        weights["output_bias"] = float64(layer.output_projection.bias)
    return weights


def layer_norm(x, gamma, beta, epsilon=1e-5):
    """S1's `LayerNorm`, S3's `layer_norm`."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * gamma + beta


def feed_forward(layer, x, activation=lambda x: np.maximum(x, 0)):
    """S1's `FFN`, S3's `feed_forward`; gated, the first half of the product scales the second."""
    kernels = [float64(dense.kernel) for dense in (layer.intermediate, layer.output_projection)]
    biases = [float64(dense.bias) if layer.use_bias else 0.0 for dense in (layer.intermediate, layer.output_projection)]
    x = x @ kernels[0] + biases[0]
    if layer.gated:
        width = x.shape[-1] // 2
        x = activation(x[..., :width]) * x[..., width:]
    else:
        x = activation(x)
    return x @ kernels[1] + biases[1]


def sinusoids(length, width):
    """S1's `P`, counted from 1 as there."""
    table = np.empty((length, width))
    for p in range(1, length + 1):
        for i in range(1, width + 1):
            angle = (p - 1) / 10000 ** ((i - 1 if i % 2 else i - 2) / width)
            table[p - 1, i - 1] = np.sin(angle) if i % 2 else np.cos(angle)
    return table
