import keras
from keras import ops

from keras_lt.backend import prefers_jit, with_implicit_mask
from keras_lt.generation.generative_mixin import GenerativeMixin
from keras_lt.layers.composite_layer import check_shape
from keras_lt.losses import TokenCrossentropy
from keras_lt.metrics import Perplexity
from keras_lt.models.base_model import BaseModel
from keras_lt.ops import combine_masks


class LanguageModel(GenerativeMixin, BaseModel):
    """Base of the models that turn token ids into logits: what `compile()` and `export()` mean by default."""

    # What a dictionary of inputs may hold; the first is required.
    input_keys = ("token_ids", "padding_mask")

    def compute_mask(self, inputs, previous_mask=None):
        return self._unpack(inputs)[1]

    def compute_output_shape(self, input_shape):
        if isinstance(input_shape, dict):
            input_shape = input_shape["token_ids"]
        return (*input_shape, self.vocabulary_size)

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

    def _logits(self, features):
        if self.tie_embeddings:
            return self.embedding.token_embedding(features, reverse=True)
        return self.head(features)

    def _unpack(self, inputs, symbolic=False):
        """The ids, the mask of the real ones or `None`, and what else there is by the `input_keys`, or `None`."""
        if not isinstance(inputs, dict):
            inputs = {"token_ids": inputs}
        if "token_ids" not in inputs or not set(inputs) <= set(self.input_keys):
            raise ValueError(
                f"Inputs must be ids of shape (B, T) or a dictionary with the keys {self.input_keys}, of which the "
                f"first is required. Received: the keys {tuple(inputs)}"
            )
        token_ids, padding_mask, *others = (inputs.get(name) for name in self.input_keys)
        if token_ids is None or len(token_ids.shape) != 2:
            shape = None if token_ids is None else tuple(token_ids.shape)
            raise ValueError(f"`token_ids` must have the shape (B, T). Received: token_ids.shape={shape}")
        for name in self.input_keys[1:]:
            check_shape(name, inputs.get(name), tuple(token_ids.shape))
        if padding_mask is not None and not symbolic:
            padding_mask = ops.cast(padding_mask, "bool")
        if self.mask_zero and not symbolic:
            padding_mask = combine_masks(padding_mask, ops.not_equal(token_ids, 0))
        return token_ids, padding_mask, *others
