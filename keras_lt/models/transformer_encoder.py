import keras
from keras import ops

from keras_lt.models.transformer_model import TransformerModel

FEATURES = (False, True, "mean")


@keras.saving.register_keras_serializable(package="keras_lt")
class TransformerEncoder(TransformerModel):
    """An encoder-only Transformer, in which every token looks at all others: ids in, logits of what was hidden out.

    `X = E[id] + P[position]`; `num_layers` times a `TransformerBlock` that is not causal; with `norm_first` a last
    layer normalisation; `logits = W X + b`, or `E X` with tied embeddings. `objectives.masked` makes what it learns
    from: text in which some ids are hidden, to be told from both sides.

    The model is built when it is made: `summary()` and `count_params()` work at once.

    Args:
        vocabulary_size: Integer. Number of ids, `V`, that of the mask among them. Defaults to `65`.
        max_sequence_length: Integer. Longest sequence, or `None` for no limit, which needs `position=None`. Defaults to
            `64`.
        num_layers: Integer. Number of blocks. Defaults to `2`.
        num_heads: Integer. Number of attention heads, `N`. Defaults to `4`.
        hidden_dim: Integer. Width `D` of the stream. Defaults to `32`.
        head_dim: Integer. Size `H` of a head. Defaults to `None`, that is `D / N`.
        num_key_value_heads: Integer. Number `K` of key and value heads. Defaults to `None`, that is `N`.
        intermediate_dim: Integer. Width `F` of the feed-forward networks. Defaults to `None`, that is `4 D`.
        activation: Activation function of the feed-forward networks. Defaults to `"relu"`.
        gated: Boolean. Whether the feed-forward networks are gated. Defaults to `False`.
        norm_first: Boolean. Whether normalisation comes before each part of a block and once at the end, or after each
            part. Defaults to `True`.
        position: `"learned"`, `"sinusoidal"`, or `None` for no positions. Defaults to `"learned"`.
        scale_embeddings: Boolean. Whether token embeddings are multiplied by `sqrt(D)`. Defaults to `False`.
        tie_embeddings: Boolean. Whether the head is the embedding table, without a bias. Defaults to `False`.
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
        return_features: `True`: what goes into the head, `(B, T, D)`, in place of the logits, to reuse; `"mean"`: its
            mean over the real tokens, `(B, D)`. Defaults to `False`.
        training: Boolean. Whether dropout is applied.

    Returns:
        The logits, `(B, T, V)`, with Keras's implicit mask where padding is known; with `return_attention_scores` a
        pair of them and a list of the weights of each block, `(B, N, T, T)`.

    Example:

    >>> model = keras_lt.models.TransformerEncoder(vocabulary_size=66)
    >>> model(np.array([[18, 65, 56]])).shape
    (1, 3, 66)
    >>> model(np.array([[18, 47, 56]]), return_features="mean").shape
    (1, 32)

    Source: S2, "Encoder only", "Masked Language Modeling"; S1, "Transformer", without the causal mask.
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
        self.build((None, None))

    def build(self, input_shape):
        if self.built:
            return
        self._build_embedding()
        self.blocks = [self._build_block(f"block_{n}", n, causal=False) for n in range(self.num_layers)]
        self.norm = self._build_norm("norm")
        self._build_head(16 * self.num_layers)

    def __call__(self, *args, **kwargs):
        outputs = super().__call__(*args, **kwargs)
        if kwargs.get("return_features") != "mean":
            return outputs
        # Keras keeps the mask of the tokens for a mean, too, which has none: not for a copy.
        if kwargs.get("return_attention_scores"):
            return ops.copy(outputs[0]), outputs[1]
        return ops.copy(outputs)

    def call(self, inputs, return_attention_scores=False, return_features=False, training=None):
        _check_features(return_features)
        outputs, scores, padding_mask = self._read(inputs, return_attention_scores, training)
        if return_features == "mean":
            outputs = _mean(outputs, padding_mask)
        elif not return_features:
            outputs = self._logits(outputs)  # (B, T, V)
        return (outputs, scores) if return_attention_scores else outputs

    def compute_output_spec(self, inputs, return_attention_scores=False, return_features=False, training=None):
        _check_features(return_features)
        batch_size, length = self._unpack(inputs, symbolic=True)[0].shape
        width = self.hidden_dim if return_features else self.vocabulary_size
        outputs = self._symbolic(*((batch_size,) if return_features == "mean" else (batch_size, length)), width)
        if not return_attention_scores:
            return outputs
        return outputs, [self._symbolic(batch_size, self.num_heads, length, length) for _ in self.blocks]


def _check_features(return_features):
    if return_features not in FEATURES:
        raise ValueError(f"`return_features` must be one of {FEATURES}. Received: {return_features!r}")


def _mean(features, padding_mask):
    """The mean over the real tokens, `(B, D)`: 0 where there is none."""
    if padding_mask is None:
        return ops.mean(features, axis=1)
    weights = ops.expand_dims(ops.cast(padding_mask, features.dtype), -1)
    # What stands at padding may be anything, NaN included.
    total = ops.sum(ops.where(weights > 0, features, 0), axis=1)
    return total / ops.maximum(ops.sum(weights, axis=1), 1)
