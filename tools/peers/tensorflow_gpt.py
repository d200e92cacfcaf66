"""A GPT in plain TensorFlow: a dictionary of tensors, S3's update, and a loop of steps in one compiled function."""

import numpy as np


def layer_norm(x, norm):
    import tensorflow as tf

    mean, variance = tf.nn.moments(x, axes=-1, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + 1e-5) * norm["scale"] + norm["offset"]


def split_heads(x, block, num_heads):
    """Queries, keys and values of a stream of known shape, each (B, N, T, H)."""
    import tensorflow as tf

    batch_size, length, width = x.shape
    rows = tf.reshape(layer_norm(x, block["attention_norm"]), (-1, width))
    qkv = tf.reshape(rows @ block["qkv"], (batch_size, length, 3, num_heads, width // num_heads))
    return tf.unstack(tf.transpose(qkv, (2, 0, 3, 1, 4)))


def add(x, context, block, activation):
    """The stream after the context of the heads, (B, N, T, H), and the feed-forward network were added."""
    import tensorflow as tf

    rows = tf.reshape(x, (-1, x.shape[-1]))
    rows += tf.reshape(tf.transpose(context, (0, 2, 1, 3)), rows.shape) @ block["output"]
    inner = layer_norm(rows, block["feed_forward_norm"]) @ block["expand"]["kernel"] + block["expand"]["bias"]
    rows += getattr(tf.nn, activation)(inner) @ block["contract"]["kernel"] + block["contract"]["bias"]
    return tf.reshape(rows, x.shape)


def logits_of(weights: dict, x):
    """Logits of a stream, (B, T, V)."""
    import tensorflow as tf

    rows = tf.reshape(layer_norm(x, weights["norm"]), (-1, x.shape[-1]))
    logits = rows @ weights["head"]["kernel"] + weights["head"]["bias"]
    return tf.reshape(logits, (*x.shape[:-1], logits.shape[-1]))


def forward(weights: dict, token_ids, num_heads: int, activation: str):
    """Logits, (B, T, V), of ids of known shape; the weights are of the form of `initial_weights`."""
    import tensorflow as tf

    length = token_ids.shape[1]
    x = tf.gather(weights["token_embedding"], token_ids) + weights["position_embedding"][:length]
    hidden = tf.linalg.band_part(tf.ones((length, length)), -1, 0) == 0
    for block in weights["blocks"]:
        query, key, value = split_heads(x, block, num_heads)
        scores = tf.matmul(query, key, transpose_b=True) * query.shape[-1] ** -0.5
        attention = tf.nn.softmax(tf.where(hidden, -1e9, scores))
        x = add(x, attention @ value, block, activation)
    return logits_of(weights, x)


def make_variables(weights: dict) -> dict:
    """The same tree, as `tf.Variable`s."""
    import tensorflow as tf

    return tf.nest.map_structure(tf.Variable, weights)


def make_training(
    variables: dict,
    num_heads: int,
    activation: str,
    learning_rate: float = 0.01,
    jit_compile: bool = True,
    steps_per_call: int = 32,
):
    """A function of windows and targets, `(steps, B, T)`, that trains on them in turn and returns the mean loss."""
    import tensorflow as tf

    flat = tf.nest.flatten(variables)
    averages, squares = ([tf.Variable(tf.zeros_like(variable)) for variable in flat] for _ in range(2))

    def step(x, y, weights, averages, squares, total):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits = forward(tf.nest.pack_sequence_as(variables, weights), x, num_heads, activation)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, weights)]
        squares = [0.9 * r + 0.1 * g * g for r, g in zip(squares, gradients, strict=True)]
        averages = [0.9 * v + 0.1 * g for v, g in zip(averages, gradients, strict=True)]
        moves = [learning_rate / (tf.sqrt(r) + 1e-8) * v for r, v in zip(squares, averages, strict=True)]
        return [p - move for p, move in zip(weights, moves, strict=True)], averages, squares, total + loss

    @tf.function(jit_compile=jit_compile, autograph=False)
    def train_group(x, y):
        held = (flat, averages, squares)
        start = (0, *tf.nest.map_structure(tf.convert_to_tensor, held), 0.0)
        _, *new, total = tf.while_loop(
            lambda index, *_: index < x.shape[0],
            lambda index, weights, averages, squares, total: (
                index + 1,
                *step(x[index], y[index], weights, averages, squares, total),
            ),
            start,
        )
        for variable, value in zip(tf.nest.flatten(held), tf.nest.flatten(new), strict=True):
            variable.assign(value)
        return total

    def train(x: np.ndarray, y: np.ndarray) -> float:
        losses = []
        for start in range(0, len(x), steps_per_call):
            group = slice(start, start + steps_per_call)
            losses.append(train_group(tf.constant(x[group]), tf.constant(y[group])))
        return float(sum(losses)) / len(x)

    return train
