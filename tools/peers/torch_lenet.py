"""LeNet-5 in plain PyTorch."""

import numpy as np


def make_model(num_classes: int = 10):
    """A `torch.nn.Sequential` from images, (B, 1, 28, 28), to logits."""
    from torch import nn

    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 4 * 4, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, num_classes)),
    )


def make_training(model, channels_last: bool = False, learning_rate: float = 1e-3):
    """A function of images, `(rows, 28, 28, 1)`, labels and a batch size that trains an epoch in a random order.

    It returns the mean loss. With `channels_last` model and images lie in memory as cuDNN and oneDNN like them best.
    """
    import torch
    from torch.nn import functional

    layout = torch.channels_last if channels_last else torch.contiguous_format
    model.to(memory_format=layout)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, fused=True)

    def train(images: np.ndarray, labels: np.ndarray, batch_size: int) -> float:
        images = torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(memory_format=layout)
        labels = torch.from_numpy(labels).long()
        losses = []
        for rows in torch.randperm(len(images)).split(batch_size):
            loss = functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses).mean().item()

    return train
