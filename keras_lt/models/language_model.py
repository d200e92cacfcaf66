import keras
from keras import layers, ops

from keras_lt.backend import prefers_jit, with_implicit_mask
from keras_lt.layers.composite_layer import check_shape
from keras_lt.layers.initialization import spawn_initializer
from keras_lt.losses import TokenCrossentropy
from keras_lt.metrics import Perplexity
from keras_lt.models.base_model import BaseModel
from keras_lt.ops import combine_masks

_USUAL_LENGTH = 64  # of data that does not tell


class LanguageModel(BaseModel):
    """Base of the models that turn token ids into logits: their inputs, and what `compile()` and `export()` mean."""

    # What a dictionary of inputs may hold; the ids come first and are required.
    input_keys = ("token_ids", "padding_mask")
    id_keys = ("token_ids",)

    def compute_mask(self, inputs, previous_mask=None):
        return self._unpack(inputs)[1]

    def compute_output_shape(self, input_shape):
        if isinstance(input_shape, dict):
            input_shape = input_shape[self.id_keys[-1]]
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
            input_signature: As in Keras. Defaults to `None`, that is `token_ids` (with a source, `source` and
                `target`), int32 of any batch and length.
            **kwargs: As in Keras.

        Raises:
            ValueError: If the model does not come out right in that format: half precision is for `"tf_saved_model"`,
                quantized layers for that and `"onnx"`.
        """
        if input_signature is None:
            specs = {name: layers.InputSpec(shape=(None, None), dtype="int32", name=name) for name in self.id_keys}
            input_signature = [specs if len(specs) > 1 else specs["token_ids"]]
        super().export(filepath, format=format, verbose=verbose, input_signature=input_signature, **kwargs)

    def _auto_loss(self):
        return TokenCrossentropy()

    def _auto_metrics(self):
        return [Perplexity()]

    def _products_per_row(self, shape):
        length = (shape[0] if shape else None) or getattr(self, "max_sequence_length", None) or _USUAL_LENGTH
        return self.count_params() * length

    def _auto_jit_compile(self):
        return prefers_jit()

    def _build_head(self, number):
        """The head, unless it is the embedding table; the number makes it start with other weights than the layers."""
        if self.tie_embeddings:
            return
        self.head = layers.Dense(
            self.vocabulary_size,
            kernel_initializer=spawn_initializer(self.kernel_initializer, number),
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name="head",
        )
        self.head.build((None, None, self.hidden_dim))

    def _logits(self, features):
        if self.tie_embeddings:
            return self.embedding.token_embedding(features, reverse=True)
        return self.head(features)

    def _symbolic(self, *shape):
        return keras.KerasTensor(shape, dtype=self.compute_dtype)

    def _unpack(self, inputs, symbolic=False):
        """The ids, the mask of the real ones or `None`, and what else there is by the `input_keys`, or `None`."""
        token_ids, padding_mask, *others = self._by_key(inputs)
        for name, other in zip(self.input_keys[2:], others, strict=True):
            check_shape(name, other, tuple(token_ids.shape))
        return token_ids, self._to_mask("padding_mask", padding_mask, token_ids, symbolic), *others

    def _by_key(self, inputs):
        """The inputs in the order of the `input_keys`, `None` for those that are not there."""
        if not isinstance(inputs, dict) and len(self.id_keys) == 1:
            inputs = {self.id_keys[0]: inputs}
        if not isinstance(inputs, dict) or not set(self.id_keys) <= set(inputs) <= set(self.input_keys):
            alone = "ids of shape (B, T) or " if len(self.id_keys) == 1 else ""
            received = f"the keys {tuple(inputs)}" if isinstance(inputs, dict) else type(inputs).__name__
            raise ValueError(
                f"Inputs must be {alone}a dictionary with the keys {self.input_keys}, of which {self.id_keys} are "
                f"required. Received: {received}"
            )
        for name in self.id_keys:
            check_ids_shape(name, inputs[name])
        return [inputs.get(name) for name in self.input_keys]

    def _to_mask(self, name, padding_mask, token_ids, symbolic=False):
        """Which ids are real, `(B, T)`, or `None`: what the mask says, and `mask_zero`."""
        check_shape(name, padding_mask, tuple(token_ids.shape))
        if symbolic:
            return padding_mask
        if padding_mask is not None:
            padding_mask = ops.cast(padding_mask, "bool")
        if self.mask_zero:
            padding_mask = combine_masks(padding_mask, ops.not_equal(token_ids, 0))
        return padding_mask


def check_ids_shape(name, token_ids):
    """Raise a `ValueError` unless ids have the shape `(B, T)`."""
    if token_ids is None or len(token_ids.shape) != 2:
        shape = None if token_ids is None else tuple(token_ids.shape)
        raise ValueError(f"`{name}` must have the shape (B, T). Received: {name}.shape={shape}")
