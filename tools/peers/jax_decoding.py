"""Greedy decoding in plain JAX: a cache for each layer, written in place, and one compiled loop."""

import numpy as np

from peers.jax_gpt import add, logits_of, split_heads


def make_generate(weights: dict, num_heads: int, activation: str, max_new_tokens: int):
    """A function of ids, `(B, P)` of int32, that returns them with the new ones behind them.

    The weights are of the form of `initial_weights`.
    """
    import jax
    import jax.numpy as jnp

    def read(weights, token_ids, caches, start):
        """The ids that come next, (B,), and the caches with the keys and values of those that are given, (B, T)."""
        length, size = token_ids.shape[1], caches[0][0].shape[2]
        positions = start + jnp.arange(length)
        x = weights["token_embedding"][token_ids] + weights["position_embedding"][positions]
        visible = jnp.arange(size) <= positions[:, None]
        new_caches = []
        for block, cache in zip(weights["blocks"], caches, strict=True):
            query, *new = split_heads(x, block, num_heads)
            key, value = (
                jax.lax.dynamic_update_slice_in_dim(old, part, start, axis=2)
                for old, part in zip(cache, new, strict=True)
            )
            scores = (query * query.shape[-1] ** -0.5) @ key.swapaxes(-1, -2)
            x = add(x, jax.nn.softmax(jnp.where(visible, scores, -1e9)) @ value, block, activation)
            new_caches.append((key, value))
        return jnp.argmax(logits_of(weights, x[:, -1:])[:, 0], axis=-1).astype("int32"), new_caches

    @jax.jit
    def generate(weights, token_ids):
        (batch_size, prompt_length), width = token_ids.shape, weights["token_embedding"].shape[1]
        shape = (batch_size, num_heads, prompt_length + max_new_tokens, width // num_heads)
        caches = [(jnp.zeros(shape), jnp.zeros(shape)) for _ in weights["blocks"]]
        last, caches = read(weights, token_ids, caches, 0)
        new_ids = jnp.zeros((max_new_tokens, batch_size), "int32").at[0].set(last)

        def step(index, state):
            last, new_ids, caches = state
            last, caches = read(weights, last[:, None], caches, prompt_length + index - 1)
            return last, new_ids.at[index].set(last), caches

        _, new_ids, _ = jax.lax.fori_loop(1, max_new_tokens, step, (last, new_ids, caches))
        return jnp.concatenate([token_ids, new_ids.T], axis=1)

    weights = jax.tree.map(jnp.asarray, weights)
    return lambda token_ids: np.asarray(generate(weights, token_ids))
