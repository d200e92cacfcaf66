"""A GPT in plain JAX: a dictionary of arrays, S3's update, and a scan over steps in one compiled function."""

import numpy as np


def layer_norm(x, norm):
    import jax

    mean = x.mean(-1, keepdims=True)
    variance = x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * norm["scale"] + norm["offset"]


def split_heads(x, block, num_heads):
    """Queries, keys and values of a stream, each (B, N, T, H)."""
    batch_size, length, width = x.shape
    qkv = layer_norm(x.reshape(-1, width), block["attention_norm"]) @ block["qkv"]
    return qkv.reshape(batch_size, length, 3, num_heads, width // num_heads).transpose(2, 0, 3, 1, 4)


def add(x, context, block, activation):
    """The stream after the context of the heads, (B, N, T, H), and the feed-forward network were added."""
    rows = x.reshape(-1, x.shape[-1])
    rows += context.swapaxes(1, 2).reshape(rows.shape) @ block["output"]
    inner = layer_norm(rows, block["feed_forward_norm"]) @ block["expand"]["kernel"] + block["expand"]["bias"]
    rows += activate(inner, activation) @ block["contract"]["kernel"] + block["contract"]["bias"]
    return rows.reshape(x.shape)


def activate(x, activation: str):
    import jax

    return jax.nn.relu(x) if activation == "relu" else jax.nn.gelu(x, approximate=False)


def logits_of(weights: dict, x):
    """Logits of a stream, (B, T, V)."""
    rows = layer_norm(x.reshape(-1, x.shape[-1]), weights["norm"])
    logits = rows @ weights["head"]["kernel"] + weights["head"]["bias"]
    return logits.reshape(*x.shape[:-1], -1)


def forward(weights: dict, token_ids, num_heads: int, activation: str):
    """Logits, (B, T, V), of ids; the weights are of the form of `initial_weights`."""
    import jax
    import jax.numpy as jnp

    length = token_ids.shape[1]
    x = weights["token_embedding"][token_ids] + weights["position_embedding"][:length]
    hidden = ~jnp.tri(length, dtype=bool)
    for block in weights["blocks"]:
        query, key, value = split_heads(x, block, num_heads)
        scores = query @ key.swapaxes(-1, -2) * query.shape[-1] ** -0.5
        attention = jax.nn.softmax(jnp.where(hidden, -1e9, scores))
        x = add(x, attention @ value, block, activation)
    return logits_of(weights, x)


def make_training(
    weights: dict, num_heads: int, activation: str, learning_rate: float = 0.01, steps_per_call: int = 32
):
    """A function of windows and targets, `(steps, B, T)`, that trains on them in turn and returns the mean loss."""
    import jax
    import jax.numpy as jnp

    def loss_of(weights, x, y):
        log_probabilities = jax.nn.log_softmax(forward(weights, x, num_heads, activation))
        return -jnp.take_along_axis(log_probabilities, y[..., None], axis=-1).mean()

    def step(state, batch):
        weights, averages, squares = state
        loss, gradients = jax.value_and_grad(loss_of)(weights, *batch)
        squares = jax.tree.map(lambda r, g: 0.9 * r + 0.1 * g * g, squares, gradients)
        averages = jax.tree.map(lambda v, g: 0.9 * v + 0.1 * g, averages, gradients)
        weights = jax.tree.map(lambda p, r, v: p - learning_rate / (jnp.sqrt(r) + 1e-8) * v, weights, squares, averages)
        return (weights, averages, squares), loss

    @jax.jit(donate_argnums=0)
    def train_group(state, x, y):
        state, losses = jax.lax.scan(step, state, (x, y))
        return state, losses.sum()

    weights = jax.tree.map(jnp.asarray, weights)
    state = (weights, *(jax.tree.map(jnp.zeros_like, weights) for _ in range(2)))

    def train(x: np.ndarray, y: np.ndarray) -> float:
        nonlocal state
        losses = []
        for start in range(0, len(x), steps_per_call):
            group = slice(start, start + steps_per_call)
            state, loss = train_group(state, x[group], y[group])
            losses.append(loss)
        return float(sum(losses)) / len(x)

    return train
