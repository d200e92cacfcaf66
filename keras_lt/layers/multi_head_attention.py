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
        """One product from `(B, T, D)` to the heads of all parts side by side, which count on from `number`."""
        return self._build_dense(name, [part * head_dim for part in parts], input_dim, number)

    def _build_output(self, output_dim, head_dim):
        self.output_projection = self._build_dense("output_projection", [output_dim], self.num_heads * head_dim, 3)
        self.dropout_layer = layers.Dropout(self.dropout, seed=self.seed, dtype=self.dtype_policy, name="dropout")

    def _build_dense(self, name, parts, input_dim, number):
        # Kernels of rank 2: for a vector times a kernel that must first be reshaped, XLA on a CPU has only a slow loop.
        dense = layers.Dense(
            sum(parts),
            use_bias=self.use_bias,
            kernel_initializer=projection_initializer(spawn_initializer(self.kernel_initializer, number), parts),
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name=name,
        )
        dense.build((None, None, input_dim))
        return dense

    def _to_heads(self, projection, inputs, num_heads):
        """`(B, T, D)` through a projection to the heads `(B, M, T, H)`."""
        # Of the inputs, not of what comes out: that has lost its shape in ONNX.
        batch_size, length, _ = ops.shape(inputs)
        shape = (batch_size, length, num_heads, projection.units // num_heads)
        return ops.swapaxes(ops.reshape(projection(inputs), shape), 1, 2)

    def _project(self, context):
        """The output for a context of heads, `(B, N, T, H)`."""
        batch_size, num_heads, length, head_dim = ops.shape(context)
        merged = ops.reshape(ops.swapaxes(context, 1, 2), (batch_size, length, num_heads * head_dim))
        return self.output_projection(merged)

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
        kernel = effective_kernel(self.output_projection)
        return ops.reshape(kernel, (self.num_heads, -1, kernel.shape[-1]))

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


def heads_kernel(projection, num_heads):
    """The kernel of a projection to heads as `(M, D, H)`."""
    kernel = effective_kernel(projection)
    return ops.transpose(ops.reshape(kernel, (kernel.shape[0], num_heads, -1)), (1, 0, 2))


def effective_kernel(dense):
    """The kernel a dense layer in effect multiplies with; LoRA and quantization included."""
    if dense.quantization_mode is None:
        return ops.convert_to_tensor(dense.kernel)
    # A quantized kernel is integers and scales: its products with the unit vectors are the numbers it stands for.
    outputs = dense(ops.eye(dense.input_spec.axes[-1]))
    return outputs if dense.bias is None else outputs - ops.cast(dense.bias, outputs.dtype)
