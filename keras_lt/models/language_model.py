import keras

from keras_lt.backend import prefers_jit, with_implicit_mask
from keras_lt.generation.generative_mixin import GenerativeMixin
from keras_lt.losses import TokenCrossentropy
from keras_lt.metrics import Perplexity
from keras_lt.models.base_model import BaseModel


class LanguageModel(GenerativeMixin, BaseModel):
    """Base of the models that turn token ids into logits: what `compile()` and `export()` mean by default."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        # Keras on JAX runs `call` alone, and so never asks `compute_mask`.
        y_pred = with_implicit_mask(y_pred, None if x is None else self.compute_mask(x))
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y_pred = with_implicit_mask(y_pred, self.compute_mask(x))
        return super().compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def export(self, filepath, format="tf_saved_model", verbose=None, input_signature=None, **kwargs):
        """Write the model for inference; see `keras.Model.export`.

        Args:
            filepath: As in Keras.
            format: As in Keras.
            verbose: As in Keras.
            input_signature: As in Keras. Defaults to `None`, that is `token_ids`, int32 of any batch and length.
            **kwargs: As in Keras.

        Raises:
            ValueError: If the model does not come out right in that format: half precision is for `"tf_saved_model"`,
                quantized layers for that and `"onnx"`.
        """
        if input_signature is None:
            input_signature = [keras.layers.InputSpec(shape=(None, None), dtype="int32", name="token_ids")]
        super().export(filepath, format=format, verbose=verbose, input_signature=input_signature, **kwargs)

    def _auto_loss(self):
        return TokenCrossentropy()

    def _auto_metrics(self):
        return [Perplexity()]

    def _auto_jit_compile(self):
        return prefers_jit()
