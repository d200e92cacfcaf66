import keras
from keras import activations, initializers, layers, ops

from keras_lt.backend import check_positive_integer, check_rate
from keras_lt.layers import TokenPositionEmbedding
from keras_lt.layers.composite_layer import check_shape
from keras_lt.layers.initialization import spawn_initializer, spawn_seed
from keras_lt.models.language_model import LanguageModel
from keras_lt.ops import combine_masks

CELLS = {"rnn": layers.SimpleRNN, "lstm": layers.LSTM, "gru": layers.GRU}


@keras.saving.register_keras_serializable(package="keras_lt")
class RecurrentLM(LanguageModel):
    """Recurrent layers that read a text token by token: ids in, logits of the next token out.

    `X = E[id]`; `num_layers` times `h_t = cell(h_{t-1}, x_t)`; `logits = W h_t + b`, or `E h_t` with tied embeddings.
    The cells are Keras's own:

    - `"rnn"`: `h_t = phi(w_2 h_{t-1} + w_1 x_t + b)`;
    - `"lstm"`: with gates that forget, read in and read out;
    - `"gru"`: `h' = f h_{t-1}`, `C = tanh(w_2 h' + w_1 x_t + b)`, `h_t = r h_{t-1} + (1 - r) C`; `f` is what Keras
      calls the reset gate, `r` its update gate, and `reset_after` is `False`.

    What has been read lies in states of fixed size, so that there is no longest sequence and a token costs the same
    wherever it stands. Padding changes no state: its logits are those of the token before it.

    The model is built when it is made: `summary()` and `count_params()` work at once.

    Args:
        vocabulary_size: Integer. Number of ids, `V`. Defaults to `65`.
        cell: `"rnn"`, `"lstm"` or `"gru"`. Defaults to `"lstm"`.
        num_layers: Integer. Number of recurrent layers. Defaults to `1`.
        hidden_dim: Integer. Width `D` of embeddings and states. Defaults to `128`.
        activation: Activation function: `phi` of `"rnn"`, of which S2 names relu, sigmoid and tanh; of the others that
            of what is read in. Defaults to `"tanh"`.
        tie_embeddings: Boolean. Whether the head is the embedding table, without a bias. Defaults to `False`.
        dropout: Float. Share of the embeddings and of the outputs of each layer set to 0 in training. Defaults to
            `0.0`.
        mask_zero: Boolean. Whether id 0 is padding. Defaults to `False`.
        embeddings_initializer: Initializer of the embedding table. Defaults to `None`, that is normal with standard
            deviation 0.02.
        kernel_initializer: Initializer of the kernels that read inputs. Defaults to `"glorot_uniform"`.
        recurrent_initializer: Initializer of the kernels that read states. Defaults to `"orthogonal"`.
        bias_initializer: Initializer of the biases, but for that of the forget gate of `"lstm"`, which starts at 1.
            Defaults to `"zeros"`.
        seed: Integer. Seed of the dropout; `keras.utils.set_random_seed` governs the rest. Defaults to `None`.

    Call arguments:
        inputs: Integer tensor of ids, `(B, T)`, or a dictionary of `"token_ids"` and `"padding_mask"`, `(B, T)`, True
            for a real token.
        return_features: Boolean. Whether to return what goes into the head, `(B, T, D)`, in place of the logits.
        training: Boolean. Whether dropout is applied.

    Returns:
        The logits, `(B, T, V)`, with Keras's implicit mask where padding is known.

    Example:

    >>> model = keras_lt.models.RecurrentLM(cell="gru", hidden_dim=32)
    >>> model(np.array([[18, 47, 56]])).shape
    (1, 3, 65)

    Source: S2, "RNN", "LSTM", "GRU".
    """

    def __init__(
        self,
        vocabulary_size=65,
        cell="lstm",
        num_layers=1,
        hidden_dim=128,
        activation="tanh",
        tie_embeddings=False,
        dropout=0.0,
        mask_zero=False,
        embeddings_initializer=None,
        kernel_initializer="glorot_uniform",
        recurrent_initializer="orthogonal",
        bias_initializer="zeros",
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.cell = cell
        self.num_layers = num_layers
        self.hidden_dim = hidden_dim
        self.activation = activations.get(activation)
        self.tie_embeddings = tie_embeddings
        self.dropout = dropout
        self.mask_zero = mask_zero
        self.embeddings_initializer = initializers.get(embeddings_initializer)
        self.kernel_initializer = initializers.get(kernel_initializer)
        self.recurrent_initializer = initializers.get(recurrent_initializer)
        self.bias_initializer = initializers.get(bias_initializer)
        self.seed = seed
        self.max_sequence_length = None
        self.supports_masking = True
        # Ids stay what they are: float16 does not hold them.
        self.autocast = False
        for name in ("vocabulary_size", "num_layers", "hidden_dim"):
            setattr(self, name, check_positive_integer(name, getattr(self, name)))
        check_rate("dropout", dropout)
        if cell not in CELLS:
            raise ValueError(f"`cell` must be one of {tuple(CELLS)}. Received: cell={cell!r}")
        self.build((None, None))

    def build(self, input_shape):
        if self.built:
            return
        self.embedding = TokenPositionEmbedding(
            self.vocabulary_size,
            None,
            self.hidden_dim,
            position=None,
            mask_zero=self.mask_zero,
            embeddings_initializer=self.embeddings_initializer,
            dtype=self.dtype_policy,
            name="embedding",
        )
        self.embedding.build((None, None))
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
        if not self.tie_embeddings:
            self.head = layers.Dense(
                self.vocabulary_size,
                kernel_initializer=spawn_initializer(self.kernel_initializer, self.num_layers),
                bias_initializer=self.bias_initializer,
                dtype=self.dtype_policy,
                name="head",
            )
            self.head.build(features_shape)

    def call(self, inputs, return_features=False, training=None):
        token_ids, padding_mask = self._unpack(inputs)
        states = self.build_cache(ops.shape(token_ids)[0], None)["states"]
        x, _ = self._read(token_ids, states, padding_mask, training)
        return x if return_features else self._logits(x)

    def build_cache(self, batch_size, max_length):
        """Make the states before the first token.

        Args:
            batch_size: Integer. Number of rows, `B`.
            max_length: Of no effect: states do not grow.

        Returns:
            A dictionary of `"states"`: of each layer a list of tensors of shape `(B, D)`, for `"lstm"` two.
        """
        shape = (batch_size, self.hidden_dim)
        number = 2 if self.cell == "lstm" else 1
        return {
            "states": [[ops.zeros(shape, self.compute_dtype) for _ in range(number)] for _ in self.recurrent_layers]
        }

    def call_with_cache(self, token_ids, cache, start_index, lengths=None):
        """Logits of new tokens, given the states after those before them.

        Args:
            token_ids: Integer tensor of shape `(B, T)`, the new tokens.
            cache: As from `build_cache`, or from the call before.
            start_index: Of no effect: a state does not know how many tokens it has seen.
            lengths: Integer tensor of shape `(B,)`: how many of the new tokens of each row are real. The others change
                nothing, and their logits mean nothing. Defaults to `None`, all.

        Returns:
            A pair of the logits, `(B, T, V)`, and the new cache.
        """
        token_ids, padding_mask = self._unpack(ops.convert_to_tensor(token_ids))
        check_shape("lengths", lengths, (token_ids.shape[0],))
        if lengths is not None:
            places = ops.arange(ops.shape(token_ids)[1], dtype="int32")
            real = places < ops.expand_dims(ops.cast(lengths, "int32"), 1)
            token_ids = ops.where(real, token_ids, 0)
            padding_mask = combine_masks(padding_mask, real)
        x, states = self._read(token_ids, cache["states"], padding_mask, training=False)
        return self._logits(x), {**cache, "states": states}

    def compute_output_spec(self, inputs, return_features=False, training=None):
        batch_size, length = self._unpack(inputs, symbolic=True)[0].shape
        width = self.hidden_dim if return_features else self.vocabulary_size
        return keras.KerasTensor((batch_size, length, width), dtype=self.compute_dtype)

    def _check_format(self, format):
        super()._check_format(format)
        if format in ("openvino", "litert"):
            raise ValueError(
                f'`format="{format}"` does not carry recurrent layers: their loop has no form there that its runtime '
                'reads. Take "onnx" or "tf_saved_model"'
            )

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "vocabulary_size": self.vocabulary_size,
                "cell": self.cell,
                "num_layers": self.num_layers,
                "hidden_dim": self.hidden_dim,
                "activation": activations.serialize(self.activation),
                "tie_embeddings": self.tie_embeddings,
                "dropout": self.dropout,
                "mask_zero": self.mask_zero,
                "embeddings_initializer": initializers.serialize(self.embeddings_initializer),
                "kernel_initializer": initializers.serialize(self.kernel_initializer),
                "recurrent_initializer": initializers.serialize(self.recurrent_initializer),
                "bias_initializer": initializers.serialize(self.bias_initializer),
                "seed": self.seed,
            }
        )
        return config

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

    def _read(self, token_ids, states, padding_mask, training):
        """The outputs of the last layer, `(B, T, D)`, and the states after the last token of each row."""
        x = self.dropout_layers[0](self.embedding(token_ids), training=training)
        if 0 in token_ids.shape:
            return x, states
        has_begun = None
        if padding_mask is not None:
            has_begun = ops.expand_dims(ops.cumsum(ops.cast(padding_mask, "int32"), axis=1) > 0, -1)
        after = []
        for layer, dropout, before in zip(self.recurrent_layers, self.dropout_layers[1:], states, strict=True):
            if token_ids.shape[1] == 1:
                x, new = self._step(layer.cell, x, before, padding_mask, training)
            else:
                x, *new = layer(x, initial_state=before, mask=padding_mask, training=training)
                if has_begun is not None:
                    # Before the first real token Keras gives 0 on some backends, whatever was read in an earlier call.
                    x = ops.where(has_begun, x, ops.expand_dims(before[0], 1))
            x = dropout(x, training=training)
            after.append(list(new))
        return x, after

    def _step(self, cell, x, states, padding_mask, training):
        """One token without a loop, of which decoding has enough."""
        _, new = cell(x[:, 0], states, training=training)
        if padding_mask is not None:
            new = [ops.where(padding_mask, one, other) for one, other in zip(new, states, strict=True)]
        return ops.expand_dims(new[0], 1), new
