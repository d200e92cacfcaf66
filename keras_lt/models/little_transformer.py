import keras
from keras import activations, initializers, layers, ops

from keras_lt.backend import check_positive_integer, check_rate
from keras_lt.layers import TokenPositionEmbedding, TransformerBlock
from keras_lt.layers.composite_layer import check_shape
from keras_lt.layers.initialization import spawn_initializer, spawn_seed
from keras_lt.models.language_model import LanguageModel
from keras_lt.ops import causal_mask, combine_masks, update_cache

POSITIONS = ("learned", "sinusoidal", "rotary", None)


@keras.saving.register_keras_serializable(package="keras_lt")
class LittleTransformer(LanguageModel):
    """A decoder-only Transformer: token ids in, logits of the next token out.

    `X = E[id] + P[position]`; `num_layers` times a `TransformerBlock`; with `norm_first` a last layer normalisation;
    `logits = W X + b`, or `E X` with tied embeddings. The defaults are S3's LittleTransformer (31,489 parameters);
    `presets.NAMED_TENSOR` is S1's form, whose softmax stands in the loss.

    The model is built when it is made: `summary()` and `count_params()` work at once.

    Args:
        vocabulary_size: Integer. Number of ids, `V`. Defaults to `65`.
        max_sequence_length: Integer. Longest sequence, or `None` for no limit, which needs positions that have none
            (`"rotary"` or `None`). Defaults to `64`.
        num_layers: Integer. Number of blocks. Defaults to `2`.
        num_heads: Integer. Number of attention heads, `N`. Defaults to `4`.
        hidden_dim: Integer. Width `D` of the stream. Defaults to `32`.
        head_dim: Integer. Size `H` of a head. Defaults to `None`, that is `D / N`.
        num_key_value_heads: Integer. Number `K` of key and value heads. Defaults to `None`, that is `N`.
        intermediate_dim: Integer. Width `F` of the feed-forward networks. Defaults to `None`, that is `4 D`.
        activation: Activation function of the feed-forward networks. Defaults to `"relu"`.
        gated: Boolean. Whether the feed-forward networks are gated. Defaults to `False`.
        norm_first: Boolean. Whether normalisation comes before each half of a block and once at the end (S3), or after
            each half (S1). Defaults to `True`.
        position: `"learned"` (S3), `"sinusoidal"` (S1), `"rotary"`, or `None` for no positions. Defaults to
            `"learned"`.
        window_size: Integer. Number of positions a query sees. Defaults to `None`, all before it.
        scale_embeddings: Boolean. Whether token embeddings are multiplied by `sqrt(D)` (S1). Defaults to `False`.
        tie_embeddings: Boolean. Whether the head is the embedding table, without a bias (S1). Defaults to `False`.
        attention_bias: Boolean. Whether the projections of the attention have biases. Defaults to `False`.
        feed_forward_bias: Boolean. Whether the feed-forward networks have biases. Defaults to `True`.
        dropout: Float. Share of embeddings, attention weights and additions to the stream set to 0 in training.
            Defaults to `0.0`.
        layer_norm_epsilon: Float. Added to the variance in layer normalisation. Defaults to `1e-5`.
        mask_zero: Boolean. Whether id 0 is padding. Defaults to `False`.
        embeddings_initializer: Initializer of the embedding tables. Defaults to `None`, that is normal with standard
            deviation 0.02.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the biases. Defaults to `"zeros"`.
        seed: Integer. Seed of the dropout; `keras.utils.set_random_seed` governs the rest. Defaults to `None`.

    Call arguments:
        inputs: Integer tensor of ids, `(B, T)`, or a dictionary of `"token_ids"` and, as wanted, `"padding_mask"`,
            `(B, T)`, True for a real token, and `"segment_ids"`, `(B, T)`: attention stops and positions restart where
            the segment changes.
        return_attention_scores: Boolean. Whether to return the attention weights as well.
        return_features: Boolean. Whether to return what goes into the head, `(B, T, D)`, in place of the logits.
        training: Boolean. Whether dropout is applied.

    Returns:
        The logits, `(B, T, V)`, with Keras's implicit mask where padding is known; with `return_attention_scores` a
        pair of them and a list of the weights of each block, `(B, N, T, T)`.

    Example:

    >>> model = keras_lt.models.LittleTransformer()
    >>> model.count_params()
    31489
    >>> model(np.array([[18, 47, 56]])).shape
    (1, 3, 65)

    ```python
    model.compile()
    model.fit(x, y)  # two arrays of ids, (rows, T); y is x moved on by one token
    ```

    Source: S3, `LittleTransformer`; S1, "Transformer".
    """

    input_keys = ("token_ids", "padding_mask", "segment_ids")

    def __init__(
        self,
        vocabulary_size=65,
        max_sequence_length=64,
        num_layers=2,
        num_heads=4,
        hidden_dim=32,
        head_dim=None,
        num_key_value_heads=None,
        intermediate_dim=None,
        activation="relu",
        gated=False,
        norm_first=True,
        position="learned",
        window_size=None,
        scale_embeddings=False,
        tie_embeddings=False,
        attention_bias=False,
        feed_forward_bias=True,
        dropout=0.0,
        layer_norm_epsilon=1e-5,
        mask_zero=False,
        embeddings_initializer=None,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
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
        self.window_size = window_size
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
        self.build((None, None))

    def build(self, input_shape):
        if self.built:
            return
        self.embedding = TokenPositionEmbedding(
            self.vocabulary_size,
            self.max_sequence_length,
            self.hidden_dim,
            position=None if self.position == "rotary" else self.position,
            scale=self.scale_embeddings,
            mask_zero=self.mask_zero,
            embeddings_initializer=self.embeddings_initializer,
            dtype=self.dtype_policy,
            name="embedding",
        )
        self.embedding.build((None, None))
        self.dropout_layer = layers.Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy, name="dropout")
        self.dropout_layer.build((None, None, self.hidden_dim))
        self.blocks = [self._build_block(number) for number in range(self.num_layers)]
        features_shape = (None, None, self.hidden_dim)
        if self.norm_first:
            self.norm = layers.LayerNormalization(epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name="norm")
            self.norm.build(features_shape)
        if not self.tie_embeddings:
            self.head = layers.Dense(
                self.vocabulary_size,
                kernel_initializer=spawn_initializer(self.kernel_initializer, 16 * self.num_layers),
                bias_initializer=self.bias_initializer,
                dtype=self.dtype_policy,
                name="head",
            )
            self.head.build(features_shape)

    def call(self, inputs, return_attention_scores=False, return_features=False, training=None):
        token_ids, padding_mask, segment_ids = self._unpack(inputs)
        attention_mask, positions = self._segments(segment_ids, padding_mask)
        x = self.embedding(token_ids, padding_mask=padding_mask, positions=positions)  # (B, T, D)
        x = self.dropout_layer(x, training=training)
        scores = []
        for block in self.blocks:
            x = block(
                x,
                padding_mask=padding_mask,
                attention_mask=attention_mask,
                return_attention_scores=return_attention_scores,
                training=training,
            )
            if return_attention_scores:
                x, block_scores = x
                scores.append(block_scores)
        outputs = self.norm(x) if self.norm_first else x
        if not return_features:
            outputs = self._logits(outputs)  # (B, T, V)
        return (outputs, scores) if return_attention_scores else outputs

    @property
    def decoding_limit(self):
        """Number of tokens after which decoding slides a window and recomputes it, or `None` where it never has to."""
        if self.max_sequence_length is None or self.position in ("learned", "sinusoidal") or self.window_size is None:
            return self.max_sequence_length
        # Positions are relative, and what a token sees, through all blocks, lies within the window that would slide.
        reach = self.num_layers * (self.window_size - 1)
        return None if reach < self.max_sequence_length else self.max_sequence_length

    def build_cache(self, batch_size, max_length):
        """Make an empty cache for decoding.

        Args:
            batch_size: Integer. Number of rows, `B`.
            max_length: Integer. Number of tokens it can hold, `S`.

        Returns:
            A dictionary of tensors whose first axis is the row: `"blocks"`, the keys and values of each block, and
            with `mask_zero` `"padding_mask"`, `(B, S)`.
        """
        cache = {"blocks": [block.build_cache(batch_size, max_length) for block in self.blocks]}
        if self.mask_zero:
            cache["padding_mask"] = ops.zeros((batch_size, max_length), "bool")
        return cache

    def call_with_cache(self, token_ids, cache, start_index, lengths=None):
        """Logits of new tokens, given the cache of those before them.

        Args:
            token_ids: Integer tensor of shape `(B, T)`, the new tokens.
            cache: As from `build_cache`, or from the call before.
            start_index: Integer, or integer tensor of shape `()` or `(B,)`: the number of tokens before the new ones.
            lengths: Integer tensor of shape `(B,)`: how many of the new tokens of each row are real. The others change
                nothing, and their logits mean nothing. Defaults to `None`, all.

        Returns:
            A pair of the logits, `(B, T, V)`, and the new cache.
        """
        token_ids, _, _ = self._unpack(ops.convert_to_tensor(token_ids))
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
        for block, block_cache in zip(self.blocks, cache["blocks"], strict=True):
            x, block_cache = block(
                x, padding_mask=padding_mask, cache=block_cache, start_index=start_index, training=False
            )
            block_caches.append(block_cache)
        cache = {**cache, "blocks": block_caches}
        if self.mask_zero:
            cache["padding_mask"] = padding_mask
        return self._logits(self.norm(x) if self.norm_first else x), cache

    def compute_output_spec(self, inputs, return_attention_scores=False, return_features=False, training=None):
        batch_size, length = self._unpack(inputs, symbolic=True)[0].shape
        width = self.hidden_dim if return_features else self.vocabulary_size
        outputs = keras.KerasTensor((batch_size, length, width), dtype=self.compute_dtype)
        if not return_attention_scores:
            return outputs
        scores_shape = (batch_size, self.num_heads, length, length)
        scores = [keras.KerasTensor(scores_shape, dtype=self.compute_dtype) for _ in self.blocks]
        return outputs, scores

    def _check_arguments(self):
        for name in ("vocabulary_size", "num_layers", "num_heads", "hidden_dim"):
            setattr(self, name, check_positive_integer(name, getattr(self, name)))
        for name in ("max_sequence_length", "head_dim", "num_key_value_heads", "intermediate_dim", "window_size"):
            setattr(self, name, check_positive_integer(name, getattr(self, name), optional=True))
        check_rate("dropout", self.dropout)
        if self.position not in POSITIONS:
            raise ValueError(f"`position` must be one of {POSITIONS}. Received: position={self.position!r}")

    def _build_block(self, number):
        block = TransformerBlock(
            self.num_heads,
            head_dim=self.head_dim,
            num_key_value_heads=self.num_key_value_heads,
            intermediate_dim=self.intermediate_dim,
            activation=self.activation,
            gated=self.gated,
            norm_first=self.norm_first,
            window_size=self.window_size,
            rotary=self.position == "rotary",
            attention_bias=self.attention_bias,
            feed_forward_bias=self.feed_forward_bias,
            dropout=self.dropout,
            layer_norm_epsilon=self.layer_norm_epsilon,
            kernel_initializer=spawn_initializer(self.kernel_initializer, 16 * number),
            bias_initializer=self.bias_initializer,
            seed=spawn_seed(self.seed, 4 * number + 1),
            dtype=self.dtype_policy,
            name=f"block_{number}",
        )
        block.build((None, None, self.hidden_dim))
        return block

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
                "window_size": self.window_size,
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
