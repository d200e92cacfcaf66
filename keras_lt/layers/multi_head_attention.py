import math

from keras import initializers, layers, ops

from keras_lt.backend import check_positive_integer, check_rate
from keras_lt.layers.composite_layer import CompositeLayer
from keras_lt.layers.initialization import projection_initializer, spawn_initializer
from keras_lt.ops.attention import attend, attention_weights, dot_product_attention
from keras_lt.ops.masks import expand_mask


class MultiHeadAttention(CompositeLayer):
    """What self-attention and cross-attention share: arguments, projections, attention under a mask, kernel views."""

    def __init__(
        self,
        num_heads,
        head_dim=None,
        num_key_value_heads=None,
        use_bias=False,
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_key_value_heads = num_key_value_heads
        self.use_bias = use_bias
        self.dropout = dropout
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.seed = seed
        for name in ("num_heads", "head_dim", "num_key_value_heads"):
            setattr(self, name, check_positive_integer(name, getattr(self, name), optional=name != "num_heads"))
        check_rate("dropout", dropout)
        if num_heads % self._key_value_heads():
            raise ValueError(
                "`num_heads` must be a multiple of `num_key_value_heads`. "
                f"Received: num_heads={num_heads}, num_key_value_heads={num_key_value_heads}"
            )

    def _key_value_heads(self):
        return self.num_heads if self.num_key_value_heads is None else self.num_key_value_heads

    def _size_of_heads(self, hidden_dim):
        if self.head_dim is not None:
            return self.head_dim
        if hidden_dim % self.num_heads:
            raise ValueError(
                "Without `head_dim`, the width of the input must be a multiple of `num_heads`. "
                f"Received: width {hidden_dim}, num_heads={self.num_heads}"
            )
        return hidden_dim // self.num_heads

    def _build_projection(self, name, parts, input_dim, head_dim, number=0):
        """One product from `(B, T, D)` to the heads `(B, M, T, H)` of all parts, which count on from `number`."""
        projection = layers.EinsumDense(
            "btd,dmh->bmth",
            output_shape=(sum(parts), None, head_dim),
            bias_axes="mh" if self.use_bias else None,
            kernel_initializer=projection_initializer(
                spawn_initializer(self.kernel_initializer, number), parts, axis=1
            ),
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name=name,
        )
        projection.build((None, None, input_dim))
        projection.supports_masking = True
        projection.input_spec = layers.InputSpec(ndim=3, axes={-1: input_dim})
        return projection

    def _build_output(self, output_dim, head_dim):
        self.output_projection = layers.EinsumDense(
            "bnth,nhd->btd",
            output_shape=(None, output_dim),
            bias_axes="d" if self.use_bias else None,
            kernel_initializer=projection_initializer(
                spawn_initializer(self.kernel_initializer, 3), [self.num_heads], axis=0
            ),
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name="output_projection",
        )
        self.output_projection.build((None, self.num_heads, None, head_dim))
        self.dropout_layer = layers.Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy, name="dropout")

    def _attend(self, query, key, value, mask, return_attention_scores, training):
        """Heads `(B, N, T, H)` and `(B, K, S, H)` to the context `(B, N, T, H)` and the scores, or None if unneeded."""
        if not return_attention_scores and not (self.dropout and training):
            return dot_product_attention(query, key, value, mask), None
        weights = attention_weights(query, key, mask)
        return attend(self.dropout_layer(weights, training=training), value), weights

    def _expand_attention_mask(self, mask, batch_size, query_length, key_length):
        if mask is None:
            return None
        if "float" in str(mask.dtype):
            raise ValueError(
                "`attention_mask` must be boolean (or 0 and 1 as integers), True where a query may look at a key. "
                f"Received: attention_mask.dtype={mask.dtype}"
            )
        return ops.cast(expand_mask(mask, query_length, key_length, self.num_heads, batch_size), "bool")

    def __dir__(self):
        # Keras reads all that is listed here whenever it saves or loads, and the kernels to look at are computed.
        return [name for name in super().__dir__() if not name.endswith("_kernel")]

    @property
    def output_kernel(self):
        """The output projection in the sources' shape `(N, H, D)`: S1's `W_O`; S3's `proj`, reshaped."""
        return output_kernel(self.output_projection)

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "num_heads": self.num_heads,
                "head_dim": self.head_dim,
                "num_key_value_heads": self.num_key_value_heads,
                "use_bias": self.use_bias,
                "dropout": self.dropout,
                "kernel_initializer": initializers.serialize(self.kernel_initializer),
                "bias_initializer": initializers.serialize(self.bias_initializer),
                "seed": self.seed,
            }
        )
        return config


def heads_kernel(projection):
    """The kernel a projection to heads in effect multiplies with, as `(M, D, H)`; LoRA and quantization included."""
    if projection.quantization_mode is None:
        return ops.transpose(projection.kernel, (1, 0, 2))
    # A quantized kernel is integers and scales: its products with the unit vectors are the numbers it stands for.
    return _linear_part(projection, ops.eye(projection.kernel.shape[0])[None])[0]


def output_kernel(projection):
    """The kernel a projection from heads in effect multiplies with, as `(N, H, D)`; LoRA and quantization included."""
    if projection.quantization_mode is None:
        return ops.convert_to_tensor(projection.kernel)
    shape = projection.kernel.shape
    rows = math.prod(shape[:2])
    units = ops.transpose(ops.reshape(ops.eye(rows), (rows, *shape[:2])), (1, 0, 2))
    return ops.reshape(_linear_part(projection, units[None]), shape)


def _linear_part(projection, inputs):
    outputs = projection(inputs)
    return outputs if projection.bias is None else outputs - ops.cast(projection.bias, outputs.dtype)
