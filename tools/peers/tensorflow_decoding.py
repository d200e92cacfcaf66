"""Greedy decoding in plain TensorFlow: a cache for each layer, written in place, and one compiled loop."""

from peers.tensorflow_gpt import add, logits_of, split_heads


def attend(query, key, value, visible):
    """The context, (B, N, T, H), of queries (B, N, T, H), keys and values (B, N, S, H); `visible` is (T, S)."""
    import tensorflow as tf

    scores = tf.matmul(query * query.shape[-1] ** -0.5, key, transpose_b=True)
    return tf.nn.softmax(tf.where(visible, scores, -1e9)) @ value


def attend_once(query, key, value, visible):
    """The same for a single query of a single prompt, keys and values (S, 1, N, H): products would be slower here."""
    import tensorflow as tf

    scores = tf.reduce_sum(query[:, :, 0] * query.shape[-1] ** -0.5 * key, axis=-1)  # (S, 1, N)
    weights = tf.nn.softmax(tf.where(tf.reshape(visible, (-1, 1, 1)), scores, -1e9), axis=0)
    return tf.reduce_sum(weights[..., None] * value, axis=0)[:, :, None]


def make_generate(weights: dict, num_heads: int, activation: str, max_new_tokens: int):
    """A function of ids, `(B, P)` of int32, that returns them with the new ones behind them.

    The weights are of the form of `initial_weights`, as `tf.Variable`s.
    """
    import tensorflow as tf
    from tensorflow.compiler.tf2xla.python import xla

    def read(token_ids, caches, start):
        """The ids that come next, (B,), and the caches with the keys and values of those that are given, (B, T)."""
        batch_size, length = token_ids.shape
        positions_first = batch_size == 1  # the layout of the cache; else (B, N, S, H)
        positions = start + tf.range(length)
        x = tf.gather(weights["token_embedding"], token_ids) + tf.gather(weights["position_embedding"], positions)
        place = tf.stack([start, 0, 0, 0] if positions_first else [0, 0, start, 0])
        new_caches = []
        for block, cache in zip(weights["blocks"], caches, strict=True):
            query, *new = split_heads(x, block, num_heads)
            placed = [tf.transpose(part, (2, 0, 1, 3)) for part in new] if positions_first else new
            cache = [xla.dynamic_update_slice(old, part, place) for old, part in zip(cache, placed, strict=True)]
            if length > 1:  # the prompt, which has nothing before it
                context = attend(query, *new, tf.range(length) <= positions[:, None])
            else:
                size = cache[0].shape[0 if positions_first else 2]
                context = (attend_once if positions_first else attend)(query, *cache, tf.range(size) <= start)
            x = add(x, context, block, activation)
            new_caches.append(cache)
        return tf.argmax(logits_of(weights, x[:, -1:])[:, 0], axis=-1, output_type=tf.int32), new_caches

    @tf.function(jit_compile=True, autograph=False)
    def generate(token_ids):
        (batch_size, prompt_length), width = token_ids.shape, weights["token_embedding"].shape[1]
        size, head_dim = prompt_length + max_new_tokens, width // num_heads
        shape = (size, 1, num_heads, head_dim) if batch_size == 1 else (batch_size, num_heads, size, head_dim)
        last, caches = read(token_ids, [[tf.zeros(shape), tf.zeros(shape)] for _ in weights["blocks"]], 0)
        token_ids = tf.concat([token_ids, tf.zeros((batch_size, max_new_tokens), "int32")], axis=1)

        def step(index, last, token_ids, caches):
            token_ids = xla.dynamic_update_slice(token_ids, last[:, None], tf.stack([0, index]))
            last, caches = read(last[:, None], caches, index)
            return index + 1, last, token_ids, caches

        state = (prompt_length, last, token_ids, caches)
        _, last, token_ids, _ = tf.while_loop(lambda index, *_: index < size - 1, step, state)
        return tf.concat([token_ids[:, :-1], last[:, None]], axis=1)

    return lambda token_ids: generate(tf.constant(token_ids, tf.int32)).numpy()
