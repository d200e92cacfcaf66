"""Greedy decoding in plain PyTorch as nanoGPT does it: without a cache, the whole sequence read for each token."""

import numpy as np


def make_generate(model, max_new_tokens: int):
    """A function of ids, `(B, P)` of int32, that returns them with the new ones behind them.

    The model is one of `peers.torch_gpt`.
    """
    import torch

    @torch.inference_mode()
    def generate(token_ids: np.ndarray) -> np.ndarray:
        token_ids = torch.from_numpy(token_ids).long()
        for _ in range(max_new_tokens):
            window = token_ids[:, -model.position_embedding.num_embeddings :]
            x = model.token_embedding(window) + model.position_embedding(torch.arange(window.shape[1]))
            for block in model.blocks:
                x = block(x)
            last = model.head(model.norm(x[:, -1]))
            token_ids = torch.cat([token_ids, last.argmax(-1, keepdim=True)], dim=1)
        return token_ids.int().numpy()

    return generate
