import keras
from keras import activations, initializers, layers

from keras_lt.backend import check_positive
from keras_lt.layers.causal_multi_head_attention import CausalMultiHeadAttention
from keras_lt.layers.composite_layer import CompositeLayer, pack_results, unpack_results
from keras_lt.layers.cross_attention import CrossAttention
from keras_lt.layers.feed_forward import FeedForward
from keras_lt.layers.initialization import spawn_initializer, spawn_seed
from keras_lt.ops.masks import combine_masks


@keras.saving.register_keras_serializable(package="keras_lt")
class TransformerBlock(CompositeLayer):
    """Attention, then a feed-forward network, each added to the stream; layer normalisation before or after.

    Pre-norm (S3): `X = X + Att(LayerNorm(X)); X = X + FFN(LayerNorm(X))`. Post-norm (S1):
    `T = LayerNorm(Att(X) + X); X = LayerNorm(FFN(T) + T)`. Causal, it is the block of a decoder-only model; with
    `causal=False` that of an encoder; given `encoder_output`, that of a decoder, with cross-attention in between.

    Args:
        num_heads: Integer. Number of attention heads, `N`.
        head_dim: Integer. Size `H` of a head. Defaults to `None`, that is `D / N`.
        num_key_value_heads: Integer. Number `K` of key and value heads. Defaults to `None`, that is `N`.
        intermediate_dim: Integer. Width `F` of the feed-forward network. Defaults to `None`, that is `4 D`.
        activation: Activation function of the feed-forward network. Defaults to `"relu"`.
        gated: Boolean. Whether the feed-forward network is gated. Defaults to `False`.
        norm_first: Boolean. Whether normalisation comes before each half (S3) or after it (S1). Defaults to `True`.
        causal: Boolean. Whether no position looks at a later one. Defaults to `True`.
        window_size: Integer. Number of positions a query sees, at a cost that grows with it in place of the length.
            Defaults to `None`, all before it.
        rotary: Boolean. Whether queries and keys are rotated by their positions. Defaults to `False`.
        attention_bias: Boolean. Whether the projections of the attention have biases. Defaults to `False`.
        feed_forward_bias: Boolean. Whether the feed-forward network has biases. Defaults to `True`.
        dropout: Float. Share of attention weights, and of what each half adds, set to 0 in training. Defaults to
            `0.0`.
        layer_norm_epsilon: Float. Added to the variance in layer normalisation. Defaults to `1e-5`.
        kernel_initializer: Initializer of the kernels. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the biases. Defaults to `"zeros"`.
        seed: Integer. Seed of the dropout. Defaults to `None`.

    Call arguments:
        inputs: Tensor of shape `(B, T, D)`.
        encoder_output: Tensor of shape `(B, S, C)`. Whether it is given must not change after the first call.
        mask: Keras's implicit padding mask of `inputs`.
        inputs_mask: The same, under the name Keras gives it when several tensors are passed.
        encoder_output_mask: Keras's implicit padding mask of `encoder_output`.
        padding_mask: Boolean tensor of shape `(B, T)` (with a cache, of its length), True for a real position.
        encoder_padding_mask: Boolean tensor of shape `(B, S)`, True for a real position of `encoder_output`.
        attention_mask: Boolean tensor for the self-attention, `(T, T)`, `(B, T, T)` or `(B, N or 1, T, T)`.
        cache: Dictionary as from `build_cache`.
        start_index: Integer, or integer tensor of shape `()` or `(B,)`. Position of the first input. Defaults to
            `None`, that is 0.
        return_attention_scores: Boolean. Whether to return the attention weights as well.
        training: Boolean. Whether dropout is applied.

    Returns:
        `output[, scores][, cache]`: the output of shape `(B, T, D)`; if asked for, the self-attention weights
        `(B, N, T, T)`, in a decoder block a pair of them and the cross-attention weights `(B, N, T, S)`; if a cache
        was given, the new cache.

    Example:

    >>> block = keras_lt.layers.TransformerBlock(num_heads=4)
    >>> block(np.random.rand(2, 7, 32)).shape
    (2, 7, 32)

    Source: S1, `T^l` and `X^l`; S3, `block`; S2, the encoder-decoder.
    """

    def __init__(
        self,
        num_heads,
        head_dim=None,
        num_key_value_heads=None,
        intermediate_dim=None,
        activation="relu",
        gated=False,
        norm_first=True,
        causal=True,
        window_size=None,
        rotary=False,
        attention_bias=False,
        feed_forward_bias=True,
        dropout=0.0,
        layer_norm_epsilon=1e-5,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_key_value_heads = num_key_value_heads
        self.intermediate_dim = intermediate_dim
        self.activation = activations.get(activation)
        self.gated = gated
        self.norm_first = norm_first
        self.causal = causal
        self.window_size = window_size
        self.rotary = rotary
        self.attention_bias = attention_bias
        self.feed_forward_bias = feed_forward_bias
        self.dropout = dropout
        self.layer_norm_epsilon = layer_norm_epsilon
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.seed = seed
        check_positive("layer_norm_epsilon", layer_norm_epsilon)
        if not causal and (rotary or window_size is not None):
            raise ValueError(
                "`rotary` and `window_size` belong to causal attention. "
                f"Received: causal=False, rotary={rotary}, window_size={window_size}"
            )

    def build(self, inputs_shape, encoder_output_shape=None):
        inputs_shape = tuple(inputs_shape)
        self.input_spec = layers.InputSpec(ndim=3, axes={-1: inputs_shape[-1]})
        self.attention_norm = self._build_norm("attention_norm", inputs_shape)
        if self.causal:
            self.attention = CausalMultiHeadAttention(
                window_size=self.window_size, rotary=self.rotary, name="attention", **self._attention_arguments(0)
            )
            self.attention.build(inputs_shape)
        else:
            self.attention = CrossAttention(name="attention", **self._attention_arguments(0))
            self.attention.build(inputs_shape, inputs_shape)
        self.cross_attention = None
        if encoder_output_shape is not None:
            self.cross_attention_norm = self._build_norm("cross_attention_norm", inputs_shape)
            self.cross_attention = CrossAttention(name="cross_attention", **self._attention_arguments(1))
            self.cross_attention.build(inputs_shape, tuple(encoder_output_shape))
        self.feed_forward_norm = self._build_norm("feed_forward_norm", inputs_shape)
        self.feed_forward = FeedForward(
            intermediate_dim=self.intermediate_dim,
            activation=self.activation,
            gated=self.gated,
            use_bias=self.feed_forward_bias,
            dropout=self.dropout,
            name="feed_forward",
            **self._shared_arguments(2),
        )
        self.feed_forward.build(inputs_shape)
        self.dropout_layer = layers.Dropout(
            self.dropout, seed=spawn_seed(self.seed, 3), dtype=self.dtype_policy, name="dropout"
        )
        self.finish_build()

    def call(
        self,
        inputs,
        encoder_output=None,
        mask=None,
        inputs_mask=None,
        encoder_output_mask=None,
        padding_mask=None,
        encoder_padding_mask=None,
        attention_mask=None,
        cache=None,
        start_index=None,
        return_attention_scores=False,
        training=None,
    ):
        self._check_arguments(encoder_output, cache)
        arguments = {"return_attention_scores": return_attention_scores, "training": training}
        decoding = self.cross_attention is not None and cache is not None
        masks = {"padding_mask": padding_mask, "attention_mask": attention_mask}
        mask = combine_masks(mask, inputs_mask)

        x = self._before(self.attention_norm, inputs)
        if self.causal:
            self_cache = cache["self_attention"] if decoding else cache
            results = self.attention(x, mask=mask, cache=self_cache, start_index=start_index, **masks, **arguments)
        else:
            self_cache = None
            results = self.attention(x, x, context_mask=mask, **masks, **arguments)
        x, scores, self_cache = unpack_results(results, return_attention_scores, self_cache is not None)
        x = self._after(self.attention_norm, inputs, x, training)
        if self.cross_attention is None:
            cache = self_cache
        else:
            stream = x
            results = self.cross_attention(
                self._before(self.cross_attention_norm, stream),
                None if decoding else encoder_output,
                context_mask=encoder_output_mask,
                padding_mask=encoder_padding_mask,
                cache=cache["cross_attention"] if decoding else None,
                **arguments,
            )
            x, cross_scores, cross_cache = unpack_results(results, return_attention_scores, decoding)
            x = self._after(self.cross_attention_norm, stream, x, training)
            scores = (scores, cross_scores)
            cache = {"self_attention": self_cache, "cross_attention": cross_cache} if decoding else None
        stream = x
        x = self.feed_forward(self._before(self.feed_forward_norm, stream), training=training)
        output = stream + x if self.norm_first else self.feed_forward_norm(stream + x)
        return pack_results(output, scores if return_attention_scores else None, cache)

    def build_cache(self, batch_size, max_length, encoder_output=None):
        """Make an empty cache for decoding.

        Args:
            batch_size: Integer. Number of rows, `B`.
            max_length: Integer. Number of positions it can hold.
            encoder_output: Tensor of shape `(B, S, C)`, for a decoder block. Its keys and values are computed here,
                once. Defaults to `None`.

        Returns:
            The cache of the self-attention; for a decoder block a dictionary of `"self_attention"` and
            `"cross_attention"`.
        """
        if not self.causal:
            raise ValueError("Only a causal block decodes with a cache. This one has causal=False")
        self._check_arguments(encoder_output, cache=None)
        cache = self.attention.build_cache(batch_size, max_length)
        if self.cross_attention is None:
            return cache
        return {"self_attention": cache, "cross_attention": self.cross_attention.build_cache(encoder_output)}

    def compute_output_shape(self, inputs_shape, encoder_output_shape=None):
        return tuple(inputs_shape)

    def _output_spec(self, inputs, encoder_output=None, cache=None, return_attention_scores=False, **arguments):
        batch_size, length = inputs.shape[:2]
        self_cache = cache["self_attention"] if cache is not None and self.cross_attention is not None else cache
        key_length = length if self_cache is None else self_cache["key"].shape[2]
        scores = self.symbolic((batch_size, self.num_heads, length, key_length))
        if self.cross_attention is not None:
            context_length = cache["cross_attention"]["key"].shape[2] if cache else encoder_output.shape[1]
            scores = (scores, self.symbolic((batch_size, self.num_heads, length, context_length)))
        return pack_results(super()._output_spec(inputs), scores if return_attention_scores else None, cache)

    def _build_norm(self, name, inputs_shape):
        norm = layers.LayerNormalization(epsilon=self.layer_norm_epsilon, dtype=self.dtype_policy, name=name)
        norm.build(inputs_shape)
        return norm

    def _shared_arguments(self, number):
        """What the inner layers have in common; the number makes them draw different random numbers."""
        return {
            "kernel_initializer": spawn_initializer(self.kernel_initializer, 4 * number),
            "bias_initializer": self.bias_initializer,
            "seed": spawn_seed(self.seed, number),
            "dtype": self.dtype_policy,
        }

    def _attention_arguments(self, number):
        return {
            "num_heads": self.num_heads,
            "head_dim": self.head_dim,
            "num_key_value_heads": self.num_key_value_heads,
            "use_bias": self.attention_bias,
            "dropout": self.dropout,
            **self._shared_arguments(number),
        }

    def _before(self, norm, stream):
        return norm(stream) if self.norm_first else stream

    def _after(self, norm, stream, addend, training):
        stream = stream + self.dropout_layer(addend, training=training)
        return stream if self.norm_first else norm(stream)

    def _check_arguments(self, encoder_output, cache):
        if cache is not None and not self.causal:
            raise ValueError("Only a causal block decodes with a cache. Received: causal=False and a cache")
        if encoder_output is not None and self.cross_attention is None:
            raise ValueError(
                "This block was built without `encoder_output` and has no cross-attention. Pass it in the first call, "
                "or to `build`"
            )
        if encoder_output is None and self.cross_attention is not None and cache is None:
            raise ValueError("This block was built as a decoder block and needs `encoder_output` or a cache")

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "num_heads": self.num_heads,
                "head_dim": self.head_dim,
                "num_key_value_heads": self.num_key_value_heads,
                "intermediate_dim": self.intermediate_dim,
                "activation": activations.serialize(self.activation),
                "gated": self.gated,
                "norm_first": self.norm_first,
                "causal": self.causal,
                "window_size": self.window_size,
                "rotary": self.rotary,
                "attention_bias": self.attention_bias,
                "feed_forward_bias": self.feed_forward_bias,
                "dropout": self.dropout,
                "layer_norm_epsilon": self.layer_norm_epsilon,
                "kernel_initializer": initializers.serialize(self.kernel_initializer),
                "bias_initializer": initializers.serialize(self.bias_initializer),
                "seed": self.seed,
            }
        )
        return config
