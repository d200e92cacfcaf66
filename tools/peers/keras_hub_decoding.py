"""Greedy decoding by KerasHub's `generate`, of its GPT-2 with other sizes: tied head, biases, GELU by tanh."""

import numpy as np


def make_generate(
    max_new_tokens: int,
    vocabulary_size: int,
    max_sequence_length: int,
    num_layers: int,
    num_heads: int,
    hidden_dim: int,
    **compile_options,
):
    """A function of ids, `(B, P)` of int32, that returns them with the new ones behind them."""
    import keras_hub

    backbone = keras_hub.models.GPT2Backbone(
        vocabulary_size,
        num_layers,
        num_heads,
        hidden_dim,
        4 * hidden_dim,
        dropout=0.0,
        max_sequence_length=max_sequence_length,
    )
    model = keras_hub.models.GPT2CausalLM(backbone=backbone, preprocessor=None)
    model.compile(sampler="greedy", **compile_options)

    def generate(token_ids: np.ndarray) -> np.ndarray:
        places = ((0, 0), (0, max_new_tokens))
        inputs = {"token_ids": np.pad(token_ids, places), "padding_mask": np.pad(np.ones_like(token_ids), places)}
        return model.generate(inputs, stop_token_ids=None)["token_ids"]

    return generate
