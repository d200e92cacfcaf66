import keras

from keras_lt.backend import check_positive_integer
from keras_lt.generation.generative_mixin import GenerativeMixin
from keras_lt.models.transformer_model import TransformerModel


@keras.saving.register_keras_serializable(package="keras_lt")
class LittleTransformer(GenerativeMixin, TransformerModel):
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
        window_size: Integer. Number of positions a query sees; time and memory then grow in proportion to the length,
            unless there are `segment_ids` or scores are asked for. Defaults to `None`, all before it.
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
    positions = ("learned", "sinusoidal", "rotary", None)

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
        super().__init__(
            vocabulary_size=vocabulary_size,
            max_sequence_length=max_sequence_length,
            num_layers=num_layers,
            num_heads=num_heads,
            hidden_dim=hidden_dim,
            head_dim=head_dim,
            num_key_value_heads=num_key_value_heads,
            intermediate_dim=intermediate_dim,
            activation=activation,
            gated=gated,
            norm_first=norm_first,
            position=position,
            scale_embeddings=scale_embeddings,
            tie_embeddings=tie_embeddings,
            attention_bias=attention_bias,
            feed_forward_bias=feed_forward_bias,
            dropout=dropout,
            layer_norm_epsilon=layer_norm_epsilon,
            mask_zero=mask_zero,
            embeddings_initializer=embeddings_initializer,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            seed=seed,
            **kwargs,
        )
        self.window_size = check_positive_integer("window_size", window_size, optional=True)
        self.build((None, None))

    def build(self, input_shape):
        if self.built:
            return
        self._build_embedding()
        attention = {"window_size": self.window_size, "rotary": self.position == "rotary"}
        self.blocks = [self._build_block(f"block_{n}", n, **attention) for n in range(self.num_layers)]
        self.norm = self._build_norm("norm")
        self._build_head(16 * self.num_layers)

    def call(self, inputs, return_attention_scores=False, return_features=False, training=None):
        outputs, scores, _ = self._read(inputs, return_attention_scores, training)
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
        block_caches = [block.build_cache(batch_size, max_length) for block in self.blocks]
        return self._empty_cache(batch_size, max_length, block_caches)

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
        return self._decode(self.blocks, self.norm, token_ids, cache, start_index, lengths)

    def compute_output_spec(self, inputs, return_attention_scores=False, return_features=False, training=None):
        batch_size, length = self._unpack(inputs, symbolic=True)[0].shape
        width = self.hidden_dim if return_features else self.vocabulary_size
        outputs = self._symbolic(batch_size, length, width)
        if not return_attention_scores:
            return outputs
        return outputs, [self._symbolic(batch_size, self.num_heads, length, length) for _ in self.blocks]

    def get_config(self):
        return {**super().get_config(), "window_size": self.window_size}
