"""Optimizers: the update rules of the sources."""

from keras_lt.optimizers.smoothed_rms import SmoothedRMS
