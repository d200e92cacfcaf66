from keras import activations, initializers, layers, ops

from keras_lt.layers.composite_layer import CompositeLayer
from keras_lt.layers.initialization import spawn_initializer, spawn_seed

CELLS = {"rnn": layers.SimpleRNN, "lstm": layers.LSTM, "gru": layers.GRU}


class RecurrentStack(CompositeLayer):
    """Recurrent layers one above the other, which begin where given states end: what recurrent models are made of.

    `call(inputs, states, padding_mask=None)` takes `(B, T, D)` and returns the outputs of the last layer, `(B, T, D)`,
    and the states after the last real token of each row. The output at padding is that of the token before it.
    """

    def __init__(
        self,
        cell,
        num_layers,
        hidden_dim,
        activation="tanh",
        dropout=0.0,
        kernel_initializer="glorot_uniform",
        recurrent_initializer="orthogonal",
        bias_initializer="zeros",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.cell = cell
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.activation = activations.get(activation)
        self.dropout = dropout
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.recurrent_initializer = initializers.get(recurrent_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.seed = seed

    def build(self, inputs_shape):
        features_shape = (None, None, self.hidden_dim)
        self.recurrent_layers, self.dropout_layers = [], []
        for number in range(self.num_layers + 1):
            dropout = layers.Dropout(
                self.dropout, seed=spawn_seed(self.seed, number), dtype=self.dtype_policy, name=f"dropout_{number}"
            )
            dropout.build(features_shape)
            self.dropout_layers.append(dropout)
        for number in range(self.num_layers):
            layer = self._make_recurrent_layer(number)
            layer.build(features_shape)
            self.recurrent_layers.append(layer)
        self.finish_build()

    def call(self, inputs, states, padding_mask=None, training=None):
        x = self.dropout_layers[0](inputs, training=training)
        if 0 in inputs.shape[:2]:
            return x, states
        has_begun = None
        if padding_mask is not None:
            has_begun = ops.expand_dims(ops.cumsum(ops.cast(padding_mask, "int32"), axis=1) > 0, -1)
        after = []
        for layer, dropout, before in zip(self.recurrent_layers, self.dropout_layers[1:], states, strict=True):
            if inputs.shape[1] == 1:
                x, new = self._step(layer.cell, x, before, padding_mask, training)
            else:
                x, *new = layer(x, initial_state=before, mask=padding_mask, training=training)
                if has_begun is not None:
                    # Before the first real token Keras gives 0 on some backends, whatever was read in an earlier call.
                    x = ops.where(has_begun, x, ops.expand_dims(before[0], 1))
            x = dropout(x, training=training)
            after.append(list(new))
        return x, after

    def initial_states(self, batch_size):
        """The states before the first token: of each layer a list of tensors of shape `(B, D)`, for `"lstm"` two."""
        shape = (batch_size, self.hidden_dim)
        number = 2 if self.cell == "lstm" else 1
        return [[ops.zeros(shape, self.compute_dtype) for _ in range(number)] for _ in range(self.num_layers)]

    def _make_recurrent_layer(self, number):
        kernels = ("kernel_initializer", "recurrent_initializer")
        arguments = {name: spawn_initializer(getattr(self, name), number) for name in kernels}
        if self.cell == "gru":
            arguments["reset_after"] = False
        if self.cell != "rnn":
            # cuDNN refuses padding before the last token, and XLA refuses cuDNN.
            arguments["use_cudnn"] = False
        return CELLS[self.cell](
            self.hidden_dim,
            activation=self.activation,
            bias_initializer=self.bias_initializer,
            return_sequences=True,
            return_state=True,
            dtype=self.dtype_policy,
            name=f"{self.cell}_{number}",
            **arguments,
        )

    def _step(self, cell, x, states, padding_mask, training):
        """One token without a loop, of which decoding has enough."""
        _, new = cell(x[:, 0], states, training=training)
        if padding_mask is not None:
            new = [ops.where(padding_mask, one, other) for one, other in zip(new, states, strict=True)]
        return ops.expand_dims(new[0], 1), new
