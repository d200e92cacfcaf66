import keras
from keras import ops

from keras_lt.generation.generative_mixin import GenerativeMixin
from keras_lt.models.recurrent_model import RecurrentModel


@keras.saving.register_keras_serializable(package="keras_lt")
class RecurrentLM(GenerativeMixin, RecurrentModel):
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
            deviation 1.
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
        super().__init__(
            vocabulary_size=vocabulary_size,
            cell=cell,
            num_layers=num_layers,
            hidden_dim=hidden_dim,
            activation=activation,
            tie_embeddings=tie_embeddings,
            dropout=dropout,
            mask_zero=mask_zero,
            embeddings_initializer=embeddings_initializer,
            kernel_initializer=kernel_initializer,
            recurrent_initializer=recurrent_initializer,
            bias_initializer=bias_initializer,
            seed=seed,
            **kwargs,
        )
        self.build((None, None))

    def build(self, input_shape):
        if self.built:
            return
        self._build_embedding()
        self.recurrent_stack = self._build_stack("recurrent_stack", 0)
        self._build_head(self.num_layers)

    def call(self, inputs, return_features=False, training=None):
        token_ids, padding_mask = self._unpack(inputs)
        states = self.recurrent_stack.initial_states(ops.shape(token_ids)[0])
        x, _ = self.recurrent_stack(self.embedding(token_ids), states, padding_mask=padding_mask, training=training)
        return x if return_features else self._logits(x)

    def build_cache(self, batch_size, max_length):
        """Make the states before the first token.

        Args:
            batch_size: Integer. Number of rows, `B`.
            max_length: Of no effect: states do not grow.

        Returns:
            A dictionary of `"states"`: of each layer a list of tensors of shape `(B, D)`, for `"lstm"` two.
        """
        return {"states": self.recurrent_stack.initial_states(batch_size)}

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
        token_ids, padding_mask = self._new_tokens(token_ids, lengths)
        x = self.embedding(token_ids)
        x, states = self.recurrent_stack(x, cache["states"], padding_mask=padding_mask, training=False)
        return self._logits(x), {**cache, "states": states}

    def compute_output_spec(self, inputs, return_features=False, training=None):
        batch_size, length = self._unpack(inputs, symbolic=True)[0].shape
        width = self.hidden_dim if return_features else self.vocabulary_size
        return self._symbolic(batch_size, length, width)
