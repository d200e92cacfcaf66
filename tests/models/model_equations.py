"""The equations of S1, S2 and S3 in NumPy and float64, for one sequence and the weights of a layer of ours."""

import numpy as np

from testing import to_numpy


def array(weight):
    return to_numpy(weight).astype("float64")


def softmax(x):
    x = np.exp(x - x.max(-1, keepdims=True))
    return x / x.sum(-1, keepdims=True)


# S3 and S1: the Transformer


def embed(layer, ids):
    """The table, scaled or not, and the positions, learned as in S3 or the sinusoids of S1."""
    table = array(layer.token_embedding.embeddings)
    x = table[ids] * (np.sqrt(table.shape[1]) if layer.scale else 1)
    if layer.position == "learned":
        return x + array(layer.position_embeddings)[: len(ids)]
    return x + sinusoids(*x.shape) if layer.position == "sinusoidal" else x


def sinusoids(length, width):
    positions = np.zeros((length, width))
    for p in range(1, length + 1):
        for i in range(1, width + 1):
            odd = i % 2 == 1
            angle = (p - 1) / 10000 ** ((i - 1 if odd else i - 2) / width)
            positions[p - 1, i - 1] = np.sin(angle) if odd else np.cos(angle)
    return positions


def layer_norm(x, norm, epsilon=1e-5):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * array(norm.gamma) + array(norm.beta)


def attention(x, context, layer, blocked=0.0):
    """S3's `multi_heads_attention` of (T, D) to (S, D), and its weights; `blocked` is added to the scores (T, S)."""
    query, key = x @ array(layer.query_kernel), context @ array(layer.key_kernel)  # (N, T, H), (N, S, H)
    weights = softmax(query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1]) + blocked)
    mixed = weights @ (context @ array(layer.value_kernel))
    return np.einsum("nth,nhd->td", mixed, array(layer.output_kernel)), weights


def causal(length, blocked=-1e9):
    """What is added to the scores: `blocked` where the key is after the query, -1e9 in S3, minus infinity in S1."""
    return np.where(np.triu(np.ones((length, length), bool), 1), blocked, 0.0)


def feed_forward(x, layer):
    first, second = layer.intermediate, layer.output_projection
    return np.maximum(x @ array(first.kernel) + array(first.bias), 0) @ array(second.kernel) + array(second.bias)


def block(x, layer, blocked=0.0, encoded=None, encoded_blocked=0.0):
    """S3's `block` (normalised before) or S1's (after), with attention to what was encoded in between if given.

    Returns the stream and the weights of each attention.
    """
    parts = [(layer.attention_norm, lambda y: attention(y, y, layer.attention, blocked))]
    if encoded is not None:
        cross = layer.cross_attention
        parts.append((layer.cross_attention_norm, lambda y: attention(y, encoded, cross, encoded_blocked)))
    parts.append((layer.feed_forward_norm, lambda y: (feed_forward(y, layer.feed_forward), None)))
    looked = []
    for norm, part in parts:
        added, weights = part(layer_norm(x, norm) if layer.norm_first else x)
        x = x + added if layer.norm_first else layer_norm(added + x, norm)
        looked.append(weights)
    return x, looked[:-1]


def blocks(x, layers, norm, **arguments):
    """Blocks and the normalisation behind them, if there is one; a list of weights for each kind of attention."""
    looked = []
    for layer in layers:
        x, weights = block(x, layer, **arguments)
        looked.append(weights)
    return (x if norm is None else layer_norm(x, norm)), list(map(list, zip(*looked, strict=True)))


def head(x, model):
    """S3's head with its bias, or S1's tied one."""
    if model.tie_embeddings:
        return x @ array(model.embedding.token_embedding.embeddings).T
    return x @ array(model.head.kernel) + array(model.head.bias)


# S2: recurrent cells


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


PHI = {"relu": lambda x: np.maximum(x, 0), "sigmoid": sigmoid, "tanh": np.tanh}


def rnn_step(states, x, w1, w2, b, phi):
    (h,) = states
    return [phi(h @ w2 + x @ w1 + b)]


def gru_step(states, x, w1, w2, b, phi):
    """Keras keeps the three in the order r (its update gate), f (its reset gate), C."""
    (h,) = states
    (w1_r, w1_f, w1_c), (w2_r, w2_f, w2_c), (b_r, b_f, b_c) = (np.split(w, 3, axis=-1) for w in (w1, w2, b))
    r = sigmoid(h @ w2_r + x @ w1_r + b_r)
    f = sigmoid(h @ w2_f + x @ w1_f + b_f)
    c = np.tanh((f * h) @ w2_c + x @ w1_c + b_c)
    return [r * h + (1 - r) * c]


def lstm_step(states, x, w1, w2, b, phi):
    """Keras keeps the four in the order in, forget, what is read in, out."""
    h, c = states
    to_i, to_f, to_c, to_o = np.split(h @ w2 + x @ w1 + b, 4)
    c = sigmoid(to_f) * c + sigmoid(to_i) * np.tanh(to_c)
    return [sigmoid(to_o) * np.tanh(c), c]


STEPS = {"rnn": rnn_step, "lstm": lstm_step, "gru": gru_step}


def run_stack(stack, sequence, before=None, phi="tanh"):
    """The outputs of the last layer of a `RecurrentStack`, (T, D), and the states of each after the last token."""
    step, after = STEPS[stack.cell], []
    for number, layer in enumerate(stack.recurrent_layers):
        w1, w2, b = (array(getattr(layer.cell, name).value) for name in ("kernel", "recurrent_kernel", "bias"))
        zeros = [np.zeros(stack.hidden_dim)] * (2 if stack.cell == "lstm" else 1)
        states, outputs = zeros if before is None else before[number], []
        for x in sequence:
            states = step(states, x, w1, w2, b, PHI[phi])
            outputs.append(states[0])
        sequence = np.stack(outputs)
        after.append(states)
    return sequence, after
