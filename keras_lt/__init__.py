"""keras_lt: small sequence models and LeNet for Keras 3."""

from keras_lt import (
    datasets,
    generation,
    layers,
    losses,
    metrics,
    models,
    objectives,
    ops,
    optimizers,
    serving,
    tokenizers,
)
from keras_lt.text_generator import TextGenerator
from keras_lt.version import __version__
