from keras import activations, initializers, layers, ops

from keras_lt.backend import check_positive_integer, check_rate
from keras_lt.layers import TokenPositionEmbedding, TransformerBlock
from keras_lt.layers.composite_layer import check_shape
from keras_lt.layers.initialization import spawn_initializer, spawn_seed
from keras_lt.models.language_model import LanguageModel, check_ids_shape
from keras_lt.ops import causal_mask, combine_masks, update_cache


class TransformerModel(LanguageModel):
    """Base of the Transformers: their arguments, embedding, blocks, normalisation, and decoding with a cache."""

    positions = ("learned", "sinusoidal", None)

    def __init__(
        self,
        *,
        vocabulary_size,
        max_sequence_length,
        num_layers,
        num_heads,
        hidden_dim,
        head_dim,
        num_key_value_heads,
        intermediate_dim,
        activation,
        gated,
        norm_first,
        position,
        scale_embeddings,
        tie_embeddings,
        attention_bias,
        feed_forward_bias,
        dropout,
        layer_norm_epsilon,
        mask_zero,
        embeddings_initializer,
        kernel_initializer,
        bias_initializer,
        seed,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.max_sequence_length = max_sequence_length
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.head_dim = head_dim
        self.num_key_value_heads = num_key_value_heads
        self.intermediate_dim = intermediate_dim
        self.activation = activations.get(activation)
        self.gated = gated
        self.norm_first = norm_first
        self.position = position
        self.scale_embeddings = scale_embeddings
        self.tie_embeddings = tie_embeddings
        self.attention_bias = attention_bias
        self.feed_forward_bias = feed_forward_bias
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.mask_zero = mask_zero
        self.embeddings_initializer = initializers.get(embeddings_initializer)
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.seed = seed
        self.supports_masking = True
        # Ids stay what they are: float16 does not hold them.
        self.autocast = False
        self._check_arguments()

    def _check_arguments(self):
        for name in ("vocabulary_size", "num_layers", "num_heads", "hidden_dim"):
            setattr(self, name, check_positive_integer(name, getattr(self, name)))
        for name in ("max_sequence_length", "head_dim", "num_key_value_heads", "intermediate_dim"):
            setattr(self, name, check_positive_integer(name, getattr(self, name), optional=True))
        check_rate("dropout", self.dropout)
        if self.position not in self.positions:
            raise ValueError(f"`position` must be one of {self.positions}. Received: position={self.position!r}")

    def _build_embedding(self, stddev=0.02):
        initializer = self.embeddings_initializer
        self.embedding = TokenPositionEmbedding(
            self.vocabulary_size,
            self.max_sequence_length,
            self.hidden_dim,
            position=None if self.position == "rotary" else self.position,
            scale=self.scale_embeddings,
            mask_zero=self.mask_zero,
            embeddings_initializer=initializers.RandomNormal(stddev=stddev) if initializer is None else initializer,
            dtype=self.dtype_policy,
            name="embedding",
        )
        self.embedding.build((None, None))
        self.dropout_layer = layers.Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy, name="dropout")
        self.dropout_layer.build((None, None, self.hidden_dim))

    def _build_block(self, name, number, encoder_output_shape=None, **arguments):
        """One block; the number, another for each block of the model, makes it start with other weights."""
        block = TransformerBlock(
            self.num_heads,
            head_dim=self.head_dim,
            num_key_value_heads=self.num_key_value_heads,
            intermediate_dim=self.intermediate_dim,
            activation=self.activation,
            gated=self.gated,
            norm_first=self.norm_first,
            attention_bias=self.attention_bias,
            feed_forward_bias=self.feed_forward_bias,
            dropout=self.dropout,
            layer_norm_epsilon=self.layer_norm_epsilon,
            kernel_initializer=spawn_initializer(self.kernel_initializer, 16 * number),
            bias_initializer=self.bias_initializer,
            seed=spawn_seed(self.seed, 4 * number + 1),
            dtype=self.dtype_policy,
            name=name,
            **arguments,
        )
        block.build((None, None, self.hidden_dim), encoder_output_shape)
        return block

    def _build_norm(self, name):
        """The normalisation behind a stack of blocks, which post-norm blocks do without."""
        if not self.norm_first:
            return None
        norm = layers.LayerNormalization(epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name)
        norm.build((None, None, self.hidden_dim))
        return norm

    def _embed(self, token_ids, training, **arguments):
        return self.dropout_layer(self.embedding(token_ids, **arguments), training=training)  # (B, T, D)

    def _read(self, inputs, return_attention_scores, training):
        """What comes out behind the one stack of blocks, `(B, T, D)`, what each looked at, and the padding mask."""
        token_ids, padding_mask, segment_ids = self._unpack(inputs)
        attention_mask, positions = self._segments(segment_ids, padding_mask)
        masks = {"padding_mask": padding_mask, "attention_mask": attention_mask}
        x = self._embed(token_ids, training, padding_mask=padding_mask, positions=positions)
        x, scores = self._through(self.blocks, self.norm, x, return_attention_scores, training=training, **masks)
        return x, scores, padding_mask

    def _through(self, blocks, norm, x, return_attention_scores, **arguments):
        """The stream behind the blocks and their normalisation, and a list of what each block looked at."""
        scores = []
        for block in blocks:
            x = block(x, return_attention_scores=return_attention_scores, **arguments)
            if return_attention_scores:
                x, block_scores = x
                scores.append(block_scores)
        return x if norm is None else norm(x), scores

    def _empty_cache(self, batch_size, max_length, block_caches):
        cache = {"blocks": block_caches}
        if self.mask_zero:
            cache["padding_mask"] = ops.zeros((batch_size, max_length), "bool")
        return cache

    def _decode(self, blocks, norm, token_ids, cache, start_index, lengths, **arguments):
        """The logits of new tokens, `(B, T, V)`, and the new cache."""
        token_ids = ops.convert_to_tensor(token_ids)
        check_ids_shape("token_ids", token_ids)
        check_shape("lengths", lengths, (token_ids.shape[0],))
        real = None
        # A single token that is not real may enter the cache: the next real one takes its place before it is seen.
        if lengths is not None and token_ids.shape[1] != 1:
            real = ops.arange(ops.shape(token_ids)[1], dtype="int32") < ops.cast(lengths, "int32")[:, None]
            token_ids = ops.where(real, token_ids, 0)
        padding_mask, position_start = None, start_index
        if self.mask_zero:
            real = combine_masks(real, ops.not_equal(token_ids, 0))
            padding_mask, position_start = self._place_padding(cache["padding_mask"], real, start_index)
        if self.decoding_limit is None:
            positions = {"positions": ops.zeros_like(token_ids)}  # no table, no limit: one is as good as another
        else:
            positions = {"start_index": position_start}
        x = self.embedding(token_ids, padding_mask=real, **positions)  # (B, T, D)
        block_caches = []
        for block, block_cache in zip(blocks, cache["blocks"], strict=True):
            x, block_cache = block(
                x, padding_mask=padding_mask, cache=block_cache, start_index=start_index, training=False, **arguments
            )
            block_caches.append(block_cache)
        cache = {**cache, "blocks": block_caches}
        if self.mask_zero:
            cache["padding_mask"] = padding_mask
        return self._logits(x if norm is None else norm(x)), cache

    def _place_padding(self, padding_mask, real, start_index):
        """The mask of the cache with the new tokens in it, `(B, S)`, and the number of real ones before, `(B,)`."""
        starts = ops.reshape(ops.cast(start_index, "int32"), (-1, 1))
        before = ops.arange(ops.shape(padding_mask)[1], dtype="int32") < starts
        count = ops.sum(ops.cast(ops.logical_and(padding_mask, before), "int32"), axis=1)
        placed = update_cache(padding_mask[:, None, :, None], real[:, None, :, None], start_index)
        return placed[:, 0, :, 0], count

    def _segments(self, segment_ids, padding_mask):
        """Which token may look at which, `(B, T, T)`, and the position of each in its segment, `(B, T)`."""
        if segment_ids is None:
            return None, None
        together = ops.equal(ops.expand_dims(segment_ids, 2), ops.expand_dims(segment_ids, 1))
        length = ops.shape(segment_ids)[1]
        before = combine_masks(together, causal_mask(length, length))
        if padding_mask is not None:
            before = combine_masks(before, ops.expand_dims(padding_mask, 1))
        positions = ops.maximum(ops.sum(ops.cast(before, "int32"), axis=-1) - 1, 0)
        return together, positions

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "vocabulary_size": self.vocabulary_size,
                "max_sequence_length": self.max_sequence_length,
                "num_layers": self.num_layers,
                "num_heads": self.num_heads,
                "hidden_dim": self.hidden_dim,
                "head_dim": self.head_dim,
                "num_key_value_heads": self.num_key_value_heads,
                "intermediate_dim": self.intermediate_dim,
                "activation": activations.serialize(self.activation),
                "gated": self.gated,
                "norm_first": self.norm_first,
                "position": self.position,
                "scale_embeddings": self.scale_embeddings,
                "tie_embeddings": self.tie_embeddings,
                "attention_bias": self.attention_bias,
                "feed_forward_bias": self.feed_forward_bias,
                "dropout": self.dropout,
                "layer_norm_epsilon": self.layer_norm_epsilon,
                "mask_zero": self.mask_zero,
                "embeddings_initializer": initializers.serialize(self.embeddings_initializer),
                "kernel_initializer": initializers.serialize(self.kernel_initializer),
                "bias_initializer": initializers.serialize(self.bias_initializer),
                "seed": self.seed,
            }
        )
        return config
