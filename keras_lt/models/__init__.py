"""Keras models, and their named sizes."""

from keras_lt.models import presets
from keras_lt.models.little_transformer import LittleTransformer
