"""Named sizes of `LittleTransformer`: plain dictionaries of its arguments, `LittleTransformer(**presets.LITTLE)`."""

from keras_lt.ops import gelu_tanh

# S3's model: 31,489 parameters.
LITTLE = {
    "vocabulary_size": 65,
    "max_sequence_length": 64,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 32,
}

# The same sizes in S1's form.
NAMED_TENSOR = {
    **LITTLE,
    "norm_first": False,
    "position": "sinusoidal",
    "scale_embeddings": True,
    "tie_embeddings": True,
}

# What reads Shakespeare's letters in seconds: rotary positions and gated feed-forward networks learn from less text.
QUICK = {
    "vocabulary_size": 65,
    "max_sequence_length": 64,
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 64,
    "activation": "silu",
    "gated": True,
    "position": "rotary",
}

# The size of the character model that nanoGPT trains on a CPU; head and biases as in S3.
NANOGPT_CPU = {
    "vocabulary_size": 65,
    "max_sequence_length": 64,
    "num_layers": 4,
    "num_heads": 4,
    "hidden_dim": 128,
    "activation": "gelu",
}

# The size of the character model that nanoGPT trains on a GPU.
NANOGPT_BABY = {
    "vocabulary_size": 65,
    "max_sequence_length": 256,
    "num_layers": 6,
    "num_heads": 6,
    "hidden_dim": 384,
    "activation": "gelu",
    "dropout": 0.2,
}

# The smallest GPT-2: 124 million parameters.
GPT2 = {
    "vocabulary_size": 50257,
    "max_sequence_length": 1024,
    "num_layers": 12,
    "num_heads": 12,
    "hidden_dim": 768,
    "activation": gelu_tanh,
    "attention_bias": True,
    "tie_embeddings": True,
}
