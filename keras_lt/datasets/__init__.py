"""Data to train and test with: texts and images."""

from keras_lt.datasets.images import digits, mnist
from keras_lt.datasets.text import python_topics, tiny_shakespeare
