"""Metrics of the models."""

from keras_lt.metrics.perplexity import Perplexity
