"""A GPT in plain PyTorch: one projection for queries, keys and values, PyTorch's own attention, fused AdamW."""

import functools

import numpy as np


@functools.cache
def module_classes():
    """The classes `(Block, GPT)`; they are made here because PyTorch is imported only where it is used."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, num_heads, hidden_dim, activation):
            super().__init__()
            self.num_heads = num_heads
            self.activation = getattr(functional, activation)
            self.attention_norm = nn.LayerNorm(hidden_dim)
            self.qkv = nn.Linear(hidden_dim, 3 * hidden_dim, bias=False)
            self.output = nn.Linear(hidden_dim, hidden_dim, bias=False)
            self.feed_forward_norm = nn.LayerNorm(hidden_dim)
            self.expand = nn.Linear(hidden_dim, 4 * hidden_dim)
            self.contract = nn.Linear(4 * hidden_dim, hidden_dim)

        def split_heads(self, x):
            """Queries, keys and values of the stream, each (B, N, T, H)."""
            qkv = self.qkv(self.attention_norm(x)).split(x.shape[-1], dim=-1)
            return [part.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for part in qkv]

        def add(self, x, context):
            """The stream after the context of the heads, (B, N, T, H), and the feed-forward network were added."""
            x = x + self.output(context.transpose(1, 2).flatten(2))
            return x + self.contract(self.activation(self.expand(self.feed_forward_norm(x))))

        def forward(self, x):
            return self.add(x, functional.scaled_dot_product_attention(*self.split_heads(x), is_causal=True))

    class GPT(nn.Module):
        def __init__(self, vocabulary_size, max_sequence_length, num_layers, num_heads, hidden_dim, activation):
            super().__init__()
            self.token_embedding = nn.Embedding(vocabulary_size, hidden_dim)
            self.position_embedding = nn.Embedding(max_sequence_length, hidden_dim)
            self.blocks = nn.ModuleList(Block(num_heads, hidden_dim, activation) for _ in range(num_layers))
            self.norm = nn.LayerNorm(hidden_dim)
            self.head = nn.Linear(hidden_dim, vocabulary_size)

        def forward(self, token_ids, targets=None):
            """Logits, (B, T, V), or with targets the loss."""
            positions = torch.arange(token_ids.shape[1])
            x = self.token_embedding(token_ids) + self.position_embedding(positions)
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.norm(x))
            if targets is None:
                return logits
            return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return Block, GPT


def make_model(weights: dict, **arguments):
    """A `torch.nn.Module` that holds `weights`, as from `initial_weights`; the arguments are those of its class."""
    import torch

    model = module_classes()[1](**arguments)

    def load(module, kernel, bias=None):
        module.weight.copy_(torch.from_numpy(kernel))
        if bias is not None:
            module.bias.copy_(torch.from_numpy(bias))

    with torch.no_grad():
        load(model.token_embedding, weights["token_embedding"])
        load(model.position_embedding, weights["position_embedding"])
        for block, held in zip(model.blocks, weights["blocks"], strict=True):
            load(block.attention_norm, held["attention_norm"]["scale"], held["attention_norm"]["offset"])
            load(block.qkv, held["qkv"].T)
            load(block.output, held["output"].T)
            load(block.feed_forward_norm, held["feed_forward_norm"]["scale"], held["feed_forward_norm"]["offset"])
            load(block.expand, held["expand"]["kernel"].T, held["expand"]["bias"])
            load(block.contract, held["contract"]["kernel"].T, held["contract"]["bias"])
        load(model.norm, weights["norm"]["scale"], weights["norm"]["offset"])
        load(model.head, weights["head"]["kernel"].T, weights["head"]["bias"])
    return model


def make_training(model, learning_rate: float = 1e-3, compiled: bool = False):
    """A function of windows and targets, `(steps, B, T)`, that trains on them in turn and returns the mean loss."""
    import torch

    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, fused=True)
    loss_of = torch.compile(model) if compiled else model

    def train(x: np.ndarray, y: np.ndarray) -> float:
        losses = []
        for inputs, targets in zip(torch.from_numpy(x).long(), torch.from_numpy(y).long(), strict=True):
            loss = loss_of(inputs, targets)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean().item()

    return train
