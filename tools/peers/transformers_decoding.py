"""Greedy decoding by `generate` of Hugging Face's transformers, of its GPT-2 with other sizes: tied head, biases."""

import numpy as np


def make_generate(
    max_new_tokens: int,
    vocabulary_size: int,
    max_sequence_length: int,
    num_layers: int,
    num_heads: int,
    hidden_dim: int,
    activation: str,
):
    """A function of ids, `(B, P)` of int32, that returns them with the new ones behind them."""
    import torch
    import transformers

    config = transformers.GPT2Config(
        vocab_size=vocabulary_size,
        n_positions=max_sequence_length,
        n_layer=num_layers,
        n_head=num_heads,
        n_embd=hidden_dim,
        activation_function=activation,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config).eval()

    @torch.inference_mode()
    def generate(token_ids: np.ndarray) -> np.ndarray:
        token_ids = torch.from_numpy(token_ids).long()
        new = model.generate(
            token_ids,
            attention_mask=torch.ones_like(token_ids),
            do_sample=False,
            min_new_tokens=max_new_tokens,
            max_new_tokens=max_new_tokens,
        )
        return new.int().numpy()

    return generate
