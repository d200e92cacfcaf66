"""Models as SavedModels that need neither keras_lt nor Keras where they run."""

from keras_lt.serving.export_saved_model import export_saved_model
