"""One set of weights for all peers, as NumPy arrays, so that they compute the same numbers."""

import numpy as np


def initial_weights(
    vocabulary_size: int,
    max_sequence_length: int,
    num_layers: int,
    hidden_dim: int,
    seed: int = 0,
    **_,
) -> dict:
    """Weights of a GPT: tables, a list of blocks, a last norm and a head. Kernels map from the left: `x @ kernel`.

    Attention has no biases; `qkv` holds the kernels of queries, keys and values side by side.
    """
    generator = np.random.default_rng(seed)

    def normal(*shape):
        return generator.normal(scale=0.02, size=shape).astype("float32")

    def glorot(rows, columns, parts=1):
        limit = np.sqrt(6 / (rows + columns / parts))
        return generator.uniform(-limit, limit, (rows, columns)).astype("float32")

    def norm():
        return {"scale": np.ones(hidden_dim, "float32"), "offset": np.zeros(hidden_dim, "float32")}

    def block():
        return {
            "attention_norm": norm(),
            "qkv": glorot(hidden_dim, 3 * hidden_dim, parts=3),
            "output": glorot(hidden_dim, hidden_dim),
            "feed_forward_norm": norm(),
            "expand": {"kernel": glorot(hidden_dim, 4 * hidden_dim), "bias": np.zeros(4 * hidden_dim, "float32")},
            "contract": {"kernel": glorot(4 * hidden_dim, hidden_dim), "bias": np.zeros(hidden_dim, "float32")},
        }

    return {
        "token_embedding": normal(vocabulary_size, hidden_dim),
        "position_embedding": normal(max_sequence_length, hidden_dim),
        "blocks": [block() for _ in range(num_layers)],
        "norm": norm(),
        "head": {"kernel": glorot(hidden_dim, vocabulary_size), "bias": np.zeros(vocabulary_size, "float32")},
    }


def count(weights: dict | list | np.ndarray) -> int:
    """How many numbers a tree of weights holds."""
    if isinstance(weights, np.ndarray):
        return weights.size
    return sum(map(count, weights.values() if isinstance(weights, dict) else weights))
