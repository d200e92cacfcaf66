import keras

from keras_lt.models.seq2seq_mixin import Seq2SeqMixin
from keras_lt.models.transformer_model import TransformerModel


@keras.saving.register_keras_serializable(package="keras_lt")
class TransformerSeq2Seq(Seq2SeqMixin, TransformerModel):
    """An encoder that reads a source and a decoder that writes a target: the Transformer of translation and of T5.

    Both embed with one table, `X = E[id] + P[position]`. The encoder's blocks look everywhere in the source, the
    decoder's at the target so far and, by cross-attention, at what the encoder made of the source: `num_layers` blocks
    each. `logits = W X + b`, or `E X` with tied embeddings. In decoding the source is read once, and its keys and
    values are kept.

    A target begins with the start token, and what it is to become ends with the end token: to learn "ab", the decoder
    reads "start a b" and is to say "a b end" (`objectives.pairs`, `objectives.span_corruption`).

    The model is built when it is made: `summary()` and `count_params()` work at once.

    Args:
        vocabulary_size: Integer. Number of ids, `V`, of source and target, the marks among them.
        start_token_id: Integer. Id that a target begins with.
        end_token_id: Integer. Id that ends a target: where `generate` stops.
        max_sequence_length: Integer. Longest source, and longest target, or `None` for no limit, which needs
            `position=None`. Defaults to `64`.
        num_layers: Integer. Number of blocks of the encoder, and of the decoder. Defaults to `2`.
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
            deviation 1, and 1 over `sqrt(D)` with `scale_embeddings`.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the biases. Defaults to `"zeros"`.
        seed: Integer. Seed of the dropout; `keras.utils.set_random_seed` governs the rest. Defaults to `None`.

    Call arguments:
        inputs: A dictionary of `"source"`, integer ids `(B, S)`, and `"target"`, `(B, T)`; as wanted,
            `"source_padding_mask"`, `(B, S)`, and `"target_padding_mask"`, `(B, T)`, True for a real token.
        return_attention_scores: Boolean. Whether to return the attention weights as well.
        return_features: Boolean. Whether to return what goes into the head, `(B, T, D)`, in place of the logits.
        training: Boolean. Whether dropout is applied.

    Returns:
        The logits, `(B, T, V)`, with Keras's implicit mask where padding of the target is known; with
        `return_attention_scores` a pair of them and a dictionary of lists, the weights of each block: `"encoder"`
        `(B, N, S, S)`, `"decoder"` `(B, N, T, T)`, `"cross"` `(B, N, T, S)`.

    Example:

    >>> model = keras_lt.models.TransformerSeq2Seq(vocabulary_size=30, start_token_id=28, end_token_id=29)
    >>> model({"source": np.array([[3, 1, 4, 1, 5]]), "target": np.array([[28, 9, 2]])}).shape
    (1, 3, 30)
    >>> len(model.generate({"source": [[3, 1, 4, 1, 5], [2, 7]]}, max_new_tokens=6))
    2

    Source: S2, "Encoder-Decoder", "T5"; S1, "Transformer".
    """

    def __init__(
        self,
        vocabulary_size,
        start_token_id,
        end_token_id,
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
        self.start_token_id = start_token_id
        self.end_token_id = end_token_id
        self._check_marks()
        self.build({name: (None, None) for name in self.id_keys})

    def build(self, input_shape):
        if self.built:
            return
        # As large as what attention adds to them. Where they are small, one mark is hard to tell from another, and much
        # more is learned before that.
        self._build_embedding(stddev=self.hidden_dim**-0.5 if self.scale_embeddings else 1.0)
        count, shape = self.num_layers, (None, None, self.hidden_dim)
        self.encoder_blocks = [self._build_block(f"encoder_block_{n}", n, causal=False) for n in range(count)]
        self.encoder_norm = self._build_norm("encoder_norm")
        self.decoder_blocks = [self._build_block(f"decoder_block_{n}", count + n, shape) for n in range(count)]
        self.decoder_norm = self._build_norm("decoder_norm")
        self._build_head(16 * 2 * count)

    def call(self, inputs, return_attention_scores=False, return_features=False, training=None):
        source, source_mask, target, target_mask = self._unpack(inputs)
        arguments = {"return_attention_scores": return_attention_scores, "training": training}
        encoded, encoder_scores = self._encode(source, source_mask, **arguments)
        x = self._embed(target, training, padding_mask=target_mask)
        arguments.update(encoder_output=encoded, encoder_padding_mask=source_mask, padding_mask=target_mask)
        outputs, scores = self._through(self.decoder_blocks, self.decoder_norm, x, **arguments)
        if not return_features:
            outputs = self._logits(outputs)  # (B, T, V)
        if not return_attention_scores:
            return outputs
        decoder_scores, cross_scores = map(list, zip(*scores, strict=True))
        return outputs, {"encoder": encoder_scores, "decoder": decoder_scores, "cross": cross_scores}

    def build_cache(self, batch_size, max_length, source=None):
        """Read the source, and make an empty cache for decoding.

        Args:
            batch_size: Integer. Number of rows, `B`.
            max_length: Integer. Number of tokens of the target it can hold.
            source: Integer tensor of ids, `(B, S)`, or a dictionary of `"token_ids"` and `"padding_mask"`, `(B, S)`,
                True for a real token.

        Returns:
            A dictionary of tensors whose first axis is the row: `"blocks"`, the keys and values of each block, of the
            source among them; where padding is known `"source_padding_mask"`; with `mask_zero` `"padding_mask"`.
        """
        token_ids, source_mask = self._unpack_source(source)
        encoded, _ = self._encode(token_ids, source_mask, training=False)
        block_caches = [block.build_cache(batch_size, max_length, encoded) for block in self.decoder_blocks]
        cache = self._empty_cache(batch_size, max_length, block_caches)
        return cache if source_mask is None else {**cache, "source_padding_mask": source_mask}

    def call_with_cache(self, token_ids, cache, start_index, lengths=None):
        """Logits of new tokens, given the cache of those before them.

        Args:
            token_ids: Integer tensor of shape `(B, T)`, the new tokens of the target.
            cache: As from `build_cache`, or from the call before.
            start_index: Integer, or integer tensor of shape `()` or `(B,)`: the number of tokens before the new ones.
            lengths: Integer tensor of shape `(B,)`: how many of the new tokens of each row are real. The others change
                nothing, and their logits mean nothing. Defaults to `None`, all.

        Returns:
            A pair of the logits, `(B, T, V)`, and the new cache.
        """
        source_mask = {"encoder_padding_mask": cache.get("source_padding_mask")}
        blocks = self.decoder_blocks
        return self._decode(blocks, self.decoder_norm, token_ids, cache, start_index, lengths, **source_mask)

    def compute_output_spec(self, inputs, return_attention_scores=False, return_features=False, training=None):
        source, _, target, _ = self._unpack(inputs, symbolic=True)
        batch_size, length = target.shape
        outputs = self._symbolic(batch_size, length, self.hidden_dim if return_features else self.vocabulary_size)
        if not return_attention_scores:
            return outputs
        sizes = {"encoder": (source.shape[1],) * 2, "decoder": (length,) * 2, "cross": (length, source.shape[1])}
        heads = (batch_size, self.num_heads)
        return outputs, {key: [self._symbolic(*heads, *s) for _ in self.decoder_blocks] for key, s in sizes.items()}

    def get_config(self):
        marks = {"start_token_id": self.start_token_id, "end_token_id": self.end_token_id}
        return {**super().get_config(), **marks}

    def _encode(self, source, source_mask, training, return_attention_scores=False):
        """What the encoder makes of the source, `(B, S, D)`, and a list of what each block looked at."""
        x = self._embed(source, training, padding_mask=source_mask)
        blocks, norm = self.encoder_blocks, self.encoder_norm
        return self._through(blocks, norm, x, return_attention_scores, padding_mask=source_mask, training=training)
