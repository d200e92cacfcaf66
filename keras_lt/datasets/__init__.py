from keras_lt.datasets.text import python_topics, tiny_shakespeare
