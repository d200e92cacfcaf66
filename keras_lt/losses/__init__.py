"""Losses of the models."""

from keras_lt.losses.token_crossentropy import TokenCrossentropy
