import keras
import numpy as np
from keras import ops

from keras_lt.backend import check_positive_integer, is_concrete
from keras_lt.layers.composite_layer import check_shape, pack_results
from keras_lt.layers.multi_head_attention import MultiHeadAttention, heads_kernel
from keras_lt.ops.cache import place_mask, update_cache
from keras_lt.ops.ids import nan_unless
from keras_lt.ops.local_attention import local_attention
from keras_lt.ops.masks import causal_mask, combine_masks, expand_mask, expand_padding_mask
from keras_lt.ops.positions import rotary_embedding


@keras.saving.register_keras_serializable(package="keras_lt")
class CausalMultiHeadAttention(MultiHeadAttention):
    """Multi-head self-attention in which no position looks at a later one.

    `Q, K, V = W_Q X, W_K X, W_V X` for each head; `Y = W_O softmax(Q K / sqrt(H) + M) V`, where `M` blocks the keys
    after the query. One product computes queries, keys and values of all heads. A position that may look at nothing
    (all it could see is padding) has a context of exactly zero, hence the output bias as its output.

    In shapes, `B` is the batch, `T` the query length, `S` the key or cache length, `D` the width of the input, `N` the
    number of heads, `K` of key/value heads, `H` the size of a head.

    Args:
        num_heads: Integer. Number of query heads, `N`.
        head_dim: Integer. Size `H` of a head. Defaults to `None`, that is `D / N`.
        num_key_value_heads: Integer. Number `K` of key and value heads, each serving `N / K` query heads. Defaults to
            `None`, that is `N`.
        use_bias: Boolean. Whether the four projections have biases. Defaults to `False`.
        window_size: Integer. Number `w` of positions a query sees, its own included. Time and memory then grow as
            `T w` in place of `T T` (`ops.local_attention`), unless a cache, an `attention_mask` or
            `return_attention_scores` asks for the full matrix. Defaults to `None`, all before it.
        rotary: Boolean. Whether queries and keys are rotated by an angle that grows with the position, base 10,000.
            Keys are cached rotated. Defaults to `False`.
        dropout: Float. Share of the attention weights set to 0 in training. Defaults to `0.0`.
        kernel_initializer: Initializer of the kernels; query, key, value and output kernel each start with the
            variance they would have alone. Defaults to `"glorot_uniform"`.
        bias_initializer: Initializer of the biases. Defaults to `"zeros"`.
        seed: Integer. Seed of the dropout. Defaults to `None`.

    Call arguments:
        inputs: Tensor of shape `(B, T, D)`.
        mask: Keras's implicit padding mask of `inputs`, `(B, T)`, True for a real position.
        inputs_mask: The same, under the name Keras gives it when several tensors are passed.
        padding_mask: Boolean tensor of shape `(B, S)`, True for a real key. It and the implicit mask both count.
        attention_mask: Boolean tensor of shape `(T, S)`, `(B, T, S)` or `(B, N or 1, T, S)`, True = may look.
        cache: Dictionary of `"key"` and `"value"`, tensors of shape `(B, K, S, H)`, as from `build_cache`. The new keys
            and values are written at `start_index`, and the queries look at the whole cache. The implicit mask speaks
            of the new tokens in this call only; later calls need `padding_mask` to know of it.
        start_index: Integer, or integer tensor of shape `()` or `(B,)`. Position of the first input. Defaults to
            `None`, that is 0. A position beyond the cache is an error in eager mode, NaN in a compiled function.
        return_attention_scores: Boolean. Whether to return the attention weights as well.
        training: Boolean. Whether dropout is applied.

    Returns:
        `output[, scores][, cache]`: the output of shape `(B, T, D)`; if asked for, the weights after the softmax and
        before dropout, `(B, N, T, S)`; if a cache was given, the new cache.

    Example:

    >>> layer = keras_lt.layers.CausalMultiHeadAttention(num_heads=4)
    >>> layer(np.random.rand(2, 7, 32)).shape
    (2, 7, 32)

    Source: S1, `SelfAtt`; S3, `multi_heads_attention`; S2, restricted self-attention (`window_size`).
    """

    def __init__(
        self,
        num_heads,
        head_dim=None,
        num_key_value_heads=None,
        use_bias=False,
        window_size=None,
        rotary=False,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
        **kwargs,
    ):
        super().__init__(
            num_heads,
            head_dim=head_dim,
            num_key_value_heads=num_key_value_heads,
            use_bias=use_bias,
            dropout=dropout,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            seed=seed,
            **kwargs,
        )
        self.window_size = window_size
        self.rotary = rotary
        self.window_size = check_positive_integer("window_size", window_size, optional=True)
        self._check_rotary(head_dim)

    def build(self, input_shape):
        hidden_dim = input_shape[-1]
        head_dim = self._size_of_heads(hidden_dim)
        self._check_rotary(head_dim)
        self.input_spec = keras.layers.InputSpec(ndim=3, axes={-1: hidden_dim})
        self.query_key_value = self._build_projection("query_key_value", self._parts(), hidden_dim, head_dim)
        self._build_output(hidden_dim, head_dim)
        self.finish_build()

    def call(
        self,
        inputs,
        mask=None,
        inputs_mask=None,
        padding_mask=None,
        attention_mask=None,
        cache=None,
        start_index=None,
        return_attention_scores=False,
        training=None,
    ):
        start_index = 0 if start_index is None else start_index
        check_shape("start_index", start_index, (), (inputs.shape[0],))
        heads = self._to_heads(self.query_key_value, inputs, sum(self._parts()))
        query, key, value = ops.split(heads, self._borders(), axis=1)  # (B, N or K, T, H)
        if self.rotary:
            positions = ops.expand_dims(ops.cast(start_index, "int32"), -1) + ops.arange(
                ops.shape(inputs)[1], dtype="int32"
            )
            query, key = rotary_embedding(query, positions), rotary_embedding(key, positions)
        if cache is not None:
            check_shape('cache["key"]', cache["key"], (inputs.shape[0], self._parts()[1], None, key.shape[3]))
            within = self._check_within_cache(start_index, query, cache)
            key = update_cache(cache["key"], key, start_index)
            value = update_cache(cache["value"], value, start_index)
            cache = {"key": key, "value": value}
        real = self._real_keys(query, key, cache, start_index, (mask, inputs_mask), padding_mask)
        if cache is None and attention_mask is None and not return_attention_scores and self._blocks_pay(query):
            context, scores = self._attend_locally(query, key, value, real, training), None
        else:
            # Without a cache the keys start where the queries do.
            visible = self._visible(query, key, 0 if cache is None else start_index, real, attention_mask)
            context, scores = self._attend(query, key, value, visible, return_attention_scores, training)
        output = self._project(context)
        if cache is not None:
            output = nan_unless(within, output)
        return pack_results(output, scores if return_attention_scores else None, cache)

    def build_cache(self, batch_size, max_length):
        """Make an empty cache.

        Args:
            batch_size: Integer. Number of rows, `B`.
            max_length: Integer. Number of positions it can hold, `S`.

        Returns:
            A dictionary of `"key"` and `"value"`, tensors of shape `(B, K, S, H)` in the compute dtype.
        """
        head_dim = self.query_key_value.units // sum(self._parts())
        shape = (batch_size, self._parts()[1], max_length, head_dim)
        return {"key": ops.zeros(shape, self.compute_dtype), "value": ops.zeros(shape, self.compute_dtype)}

    def compute_output_shape(self, input_shape):
        return tuple(input_shape)

    def _output_spec(self, inputs, cache=None, return_attention_scores=False, **arguments):
        key_length = inputs.shape[1] if cache is None else cache["key"].shape[2]
        scores = self.symbolic((inputs.shape[0], self.num_heads, inputs.shape[1], key_length))
        return pack_results(super()._output_spec(inputs), scores if return_attention_scores else None, cache)

    @property
    def query_kernel(self):
        """The query projection in the sources' shape `(N, D, H)`: S1's `W_Q`, S3's `qw`."""
        return self._heads_kernel()[: self.num_heads]

    @property
    def key_kernel(self):
        """The key projection in the sources' shape, `(K, D, H)`: S1's `W_K`, S3's `kw`."""
        return self._heads_kernel()[self._borders()[0] : self._borders()[1]]

    @property
    def value_kernel(self):
        """The value projection in the sources' shape, `(K, D, H)`: S1's `W_V`, S3's `vw`."""
        return self._heads_kernel()[self._borders()[1] :]

    def _heads_kernel(self):
        return heads_kernel(self.query_key_value, sum(self._parts()))

    def _check_rotary(self, head_dim):
        if self.rotary and head_dim is not None and head_dim % 2:
            raise ValueError(f"Rotary positions need heads of an even size. Received: head_dim={head_dim}")

    def _parts(self):
        return [self.num_heads, self._key_value_heads(), self._key_value_heads()]

    def _borders(self):
        num_heads, num_key_heads, _ = self._parts()
        return [num_heads, num_heads + num_key_heads]

    def _real_keys(self, query, key, cache, start_index, implicit_masks, padding_mask):
        """The padding masks joined: booleans of shape (B, 1, 1, S), or None."""
        batch_size, key_length = query.shape[0], key.shape[2]
        masks = []
        for mask in implicit_masks:
            if cache is not None:
                mask = place_mask(mask, ops.shape(key)[2], start_index)
            masks.append(expand_padding_mask(mask, key_length, batch_size, "mask"))
        return combine_masks(*masks, expand_padding_mask(padding_mask, key_length, batch_size))

    def _visible(self, query, key, first_query, real, attention_mask):
        """Every mask joined: booleans that broadcast to (B, N, T, S)."""
        length, key_length = query.shape[2], key.shape[2]
        causal = causal_mask(ops.shape(query)[2], ops.shape(key)[2], first_query, self.window_size)
        attention_mask = self._expand_attention_mask(attention_mask, query.shape[0], length, key_length)
        return combine_masks(expand_mask(causal, length, key_length), real, attention_mask)

    def _blocks_pay(self, query):
        """Whether blocks of two windows are less than the full matrix, or may be, the length being unknown."""
        length = query.shape[2]
        # While JAX exports for every length, a length is an expression that cannot be compared.
        return self.window_size is not None and not (isinstance(length, int) and length <= 2 * self.window_size)

    def _attend_locally(self, query, key, value, real, training):
        def attention(*blocks):
            return self._attend(*blocks, return_attention_scores=False, training=training)[0]

        real = None if real is None else ops.squeeze(real, (1, 2))
        return local_attention(query, key, value, self.window_size, real, attention)

    def _check_within_cache(self, start_index, query, cache):
        """Which positions lie inside the cache, `(B or 1, T, 1)`; an error where one does not and this can be seen."""
        length, size = query.shape[2], cache["key"].shape[2]
        if is_concrete(start_index) and None not in (length, size):
            starts = np.asarray(ops.convert_to_numpy(start_index))
            if (starts < 0).any() or (starts + length > size).any():
                raise ValueError(
                    f"The cache holds {size} positions. Received: {length} new ones from start_index={starts} on. "
                    "Build a larger cache, or start earlier"
                )
        starts = ops.reshape(ops.cast(start_index, "int32"), (-1, 1))
        positions = starts + ops.arange(ops.shape(query)[2], dtype="int32")
        return ops.logical_and(positions >= 0, positions < ops.shape(cache["key"])[2])[..., None]

    def get_config(self):
        config = super().get_config()
        config.update({"window_size": self.window_size, "rotary": self.rotary})
        return config
