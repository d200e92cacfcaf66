import keras
from keras import layers, ops

from keras_lt.layers.composite_layer import check_shape, pack_results
from keras_lt.layers.multi_head_attention import MultiHeadAttention, heads_kernel
from keras_lt.ops.masks import combine_masks, expand_padding_mask


@keras.saving.register_keras_serializable(package="keras_lt")
class CrossAttention(MultiHeadAttention):
    """Multi-head attention of one sequence to another: queries from the inputs, keys and values from the context.

    `Q = W_Q X; K, V = W_K C, W_V C; Y = W_O softmax(Q K / sqrt(H)) V`. With `context=inputs` it is the bidirectional
    self-attention of an encoder. A query whose context is all padding has a context of exactly zero.

    Args:
        num_heads: Integer. Number of query heads, `N`.
        head_dim: Integer. Size `H` of a head. Defaults to `None`, that is the width of the inputs over `N`.
        num_key_value_heads: Integer. Number `K` of key and value heads. Defaults to `None`, that is `N`.
        use_bias: Boolean. Whether the projections have biases. Defaults to `False`.
        dropout: Float. Share of the attention weights set to 0 in training. Defaults to `0.0`.
        kernel_initializer: Initializer of the kernels, each with the variance it would have alone. Defaults to
            `"glorot_uniform"`.
        bias_initializer: Initializer of the biases. Defaults to `"zeros"`.
        seed: Integer. Seed of the dropout. Defaults to `None`.

    Call arguments:
        inputs: Tensor of shape `(B, T, D)`.
        context: Tensor of shape `(B, S, C)`; may be left out when `cache` is given.
        mask: Not used: padding among the queries concerns only their own outputs.
        inputs_mask: Not used, for the same reason.
        context_mask: Keras's implicit padding mask of `context`, `(B, S)`.
        padding_mask: Boolean tensor of shape `(B, S)`, True for a real key. It and the implicit mask both count.
        attention_mask: Boolean tensor of shape `(T, S)`, `(B, T, S)` or `(B, N or 1, T, S)`, True = may look.
        cache: Dictionary of `"key"` and `"value"`, as from `build_cache(context)`: the context's keys and values, so
            that they are computed once however many queries come.
        return_attention_scores: Boolean. Whether to return the attention weights as well.
        training: Boolean. Whether dropout is applied.

    Returns:
        `output[, scores][, cache]`: the output of shape `(B, T, D)`; if asked for, the weights after the softmax,
        `(B, N, T, S)`; if a cache was given, the same cache.

    Example:

    >>> layer = keras_lt.layers.CrossAttention(num_heads=4)
    >>> layer(np.random.rand(2, 7, 32), np.random.rand(2, 5, 32)).shape
    (2, 7, 32)

    Source: S2, the attention of the encoder-decoder; S1, `Attention`.
    """

    def build(self, inputs_shape, context_shape=None):
        if context_shape is None:
            raise ValueError("The first call, or `build`, needs the context: its width decides that of the kernels")
        hidden_dim, context_dim = inputs_shape[-1], context_shape[-1]
        head_dim = self._size_of_heads(hidden_dim)
        self.input_spec = layers.InputSpec(ndim=3, axes={-1: hidden_dim})
        self.query = self._build_projection("query", [self.num_heads], hidden_dim, head_dim)
        parts = [self._key_value_heads()] * 2
        self.key_value = self._build_projection("key_value", parts, context_dim, head_dim, number=1)
        self._build_output(hidden_dim, head_dim)
        self.finish_build()

    def call(
        self,
        inputs,
        context=None,
        mask=None,
        inputs_mask=None,
        context_mask=None,
        padding_mask=None,
        attention_mask=None,
        cache=None,
        return_attention_scores=False,
        training=None,
    ):
        if (context is None) == (cache is None):
            raise ValueError("Pass one of `context` and `cache`. Received: " + ("both" if cache else "neither"))
        if context is not None:
            check_shape("context", context, (inputs.shape[0], None, None))
        keys = self.build_cache(context) if cache is None else cache
        query = self._to_heads(self.query, inputs, self.num_heads)  # (B, N, T, H)
        check_shape('cache["key"]', keys["key"], (inputs.shape[0], self._key_value_heads(), None, query.shape[3]))
        key_length, batch_size = keys["key"].shape[2], query.shape[0]
        visible = combine_masks(
            expand_padding_mask(context_mask, key_length, batch_size, "context_mask"),
            expand_padding_mask(padding_mask, key_length, batch_size),
            self._expand_attention_mask(attention_mask, batch_size, query.shape[2], key_length),
        )
        if visible is not None:
            visible = ops.logical_and(visible, ops.ones((ops.shape(query)[2], 1), "bool"))  # (B, N or 1, T, S)
        context, scores = self._attend(query, keys["key"], keys["value"], visible, return_attention_scores, training)
        return pack_results(self._project(context), scores if return_attention_scores else None, cache)

    def build_cache(self, context):
        """Compute the keys and values of a context.

        Args:
            context: Tensor of shape `(B, S, C)`.

        Returns:
            A dictionary of `"key"` and `"value"`, tensors of shape `(B, K, S, H)`.
        """
        key, value = ops.split(self._to_heads(self.key_value, context, 2 * self._key_value_heads()), 2, axis=1)
        return {"key": key, "value": value}

    def compute_output_shape(self, inputs_shape, context_shape=None):
        return tuple(inputs_shape)

    def _output_spec(self, inputs, context=None, cache=None, return_attention_scores=False, **arguments):
        key_length = context.shape[1] if cache is None else cache["key"].shape[2]
        scores = self.symbolic((inputs.shape[0], self.num_heads, inputs.shape[1], key_length))
        return pack_results(super()._output_spec(inputs), scores if return_attention_scores else None, cache)

    @property
    def query_kernel(self):
        """The query projection in the sources' shape `(N, D, H)`."""
        return heads_kernel(self.query, self.num_heads)

    @property
    def key_kernel(self):
        """The key projection in the sources' shape, `(K, C, H)`."""
        return heads_kernel(self.key_value, 2 * self._key_value_heads())[: self._key_value_heads()]

    @property
    def value_kernel(self):
        """The value projection in the sources' shape, `(K, C, H)`."""
        return heads_kernel(self.key_value, 2 * self._key_value_heads())[self._key_value_heads() :]
