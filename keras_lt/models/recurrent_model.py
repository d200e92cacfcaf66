from keras import activations, initializers, ops

from keras_lt.backend import check_positive_integer, check_rate
from keras_lt.layers import TokenPositionEmbedding
from keras_lt.layers.composite_layer import check_shape
from keras_lt.layers.initialization import spawn_initializer, spawn_seed
from keras_lt.layers.recurrent_stack import CELLS, RecurrentStack
from keras_lt.models.language_model import LanguageModel, check_ids_shape
from keras_lt.ops import combine_masks


class RecurrentModel(LanguageModel):
    """Base of the recurrent models: their arguments, embedding, stacks of recurrent layers, and formats."""

    def __init__(
        self,
        *,
        vocabulary_size,
        cell,
        num_layers,
        hidden_dim,
        activation,
        tie_embeddings,
        dropout,
        mask_zero,
        embeddings_initializer,
        kernel_initializer,
        recurrent_initializer,
        bias_initializer,
        seed,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.cell = cell
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.activation = activations.get(activation)
        self.tie_embeddings = tie_embeddings
        self.dropout = dropout
        self.mask_zero = mask_zero
        self.embeddings_initializer = initializers.get(embeddings_initializer)
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.recurrent_initializer = initializers.get(recurrent_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.seed = seed
        self.max_sequence_length = None
        self.supports_masking = True
        # Ids stay what they are: float16 does not hold them.
        self.autocast = False
        for name in ("vocabulary_size", "num_layers", "hidden_dim"):
            setattr(self, name, check_positive_integer(name, getattr(self, name)))
        check_rate("dropout", dropout)
        if cell not in CELLS:
            raise ValueError(f"`cell` must be one of {tuple(CELLS)}. Received: cell={cell!r}")

    def _build_embedding(self):
        initializer = self.embeddings_initializer
        if initializer is None:
            # The inputs of a cell should be of the size of its states: it learns much more slowly from small ones.
            initializer = initializers.RandomNormal(stddev=1.0)
        self.embedding = TokenPositionEmbedding(
            self.vocabulary_size,
            None,
            self.hidden_dim,
            position=None,
            mask_zero=self.mask_zero,
            embeddings_initializer=initializer,
            dtype=self.dtype_policy,
            name="embedding",
        )
        self.embedding.build((None, None))

    def _build_stack(self, name, number):
        """One stack of recurrent layers; the number makes each start with other weights."""
        first = number * self.num_layers
        stack = RecurrentStack(
            self.cell,
            self.num_layers,
            self.hidden_dim,
            activation=self.activation,
            dropout=self.dropout,
            kernel_initializer=spawn_initializer(self.kernel_initializer, first),
            recurrent_initializer=spawn_initializer(self.recurrent_initializer, first),
            bias_initializer=self.bias_initializer,
            seed=spawn_seed(self.seed, number * (self.num_layers + 1)),
            dtype=self.dtype_policy,
            name=name,
        )
        stack.build((None, None, self.hidden_dim))
        return stack

    def _new_tokens(self, token_ids, lengths):
        """The new tokens of a decoding step and the mask of the real ones, or `None`; the others become 0."""
        token_ids = ops.convert_to_tensor(token_ids)
        check_ids_shape("token_ids", token_ids)
        check_shape("lengths", lengths, (token_ids.shape[0],))
        padding_mask = self._to_mask("padding_mask", None, token_ids)
        if lengths is None:
            return token_ids, padding_mask
        places = ops.arange(ops.shape(token_ids)[1], dtype="int32")
        real = places < ops.expand_dims(ops.cast(lengths, "int32"), 1)
        return ops.where(real, token_ids, 0), combine_masks(padding_mask, real)

    def _check_format(self, format):
        super()._check_format(format)
        if format in ("openvino", "litert"):
            raise ValueError(
                f'`format="{format}"` does not carry recurrent layers: their loop has no form there that its runtime '
                'reads. Take "onnx" or "tf_saved_model"'
            )

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "vocabulary_size": self.vocabulary_size,
                "cell": self.cell,
                "num_layers": self.num_layers,
                "hidden_dim": self.hidden_dim,
                "activation": activations.serialize(self.activation),
                "tie_embeddings": self.tie_embeddings,
                "dropout": self.dropout,
                "mask_zero": self.mask_zero,
                "embeddings_initializer": initializers.serialize(self.embeddings_initializer),
                "kernel_initializer": initializers.serialize(self.kernel_initializer),
                "recurrent_initializer": initializers.serialize(self.recurrent_initializer),
                "bias_initializer": initializers.serialize(self.bias_initializer),
                "seed": self.seed,
            }
        )
        return config
