"""The sizes at which keras_lt and its peers are compared, and the text that all of them read."""

import os

import numpy as np

# The name of the preset, the batch size, and the number of steps that take a few seconds on two CPU cores.
SIZES = {
    "little": ("LITTLE", 32, 320),
    "nanogpt-cpu": ("NANOGPT_CPU", 12, 96),
    "baby": ("NANOGPT_BABY", 8, 8),
}


def model_arguments(size: str) -> dict:
    """The arguments of a peer's model, which are some of `LittleTransformer`'s; nothing drops out."""
    from keras_lt.models import presets

    preset = {"activation": "relu", **getattr(presets, SIZES[size][0])}
    return {key: value for key, value in preset.items() if key != "dropout"}


def token_ids() -> np.ndarray:
    """Ids below 65: Shakespeare's where `KERAS_LT_DATA` is set, else of the text of Python's help, folded to 65."""
    import keras_lt

    has_data = "KERAS_LT_DATA" in os.environ
    text = keras_lt.datasets.tiny_shakespeare() if has_data else keras_lt.datasets.python_topics()
    return keras_lt.tokenizers.CharTokenizer.from_text(text).encode(text) % 65


def training_windows(size: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Random windows and what follows each of their tokens, two arrays of int32, `(steps, B, T)`."""
    length, batch_size = model_arguments(size)["max_sequence_length"], SIZES[size][1]
    ids = token_ids()
    starts = np.random.default_rng(0).integers(len(ids) - length, size=(steps, batch_size, 1))
    windows = ids[starts + np.arange(length + 1)]
    return windows[..., :-1], windows[..., 1:]


def flops_per_token(vocabulary_size: int, max_sequence_length: int, num_layers: int, hidden_dim: int, **_) -> int:
    """Multiplications and additions of training, a token: 6 for each weight of a matrix, 12 T D for each attention.

    Forward a weight is multiplied and added once, backward twice. Scores and contexts are two products of `T` times
    `D` a token, forward; what the causal mask hides is counted, as all contenders compute it.
    """
    matrices = num_layers * 12 * hidden_dim**2 + hidden_dim * vocabulary_size
    return 6 * matrices + 12 * num_layers * max_sequence_length * hidden_dim
