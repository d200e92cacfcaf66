import keras
from keras import layers, ops

from keras_lt.layers import CrossAttention
from keras_lt.layers.composite_layer import unpack_results
from keras_lt.layers.initialization import spawn_initializer
from keras_lt.models.recurrent_model import RecurrentModel
from keras_lt.models.seq2seq_mixin import Seq2SeqMixin


@keras.saving.register_keras_serializable(package="keras_lt")
class RecurrentSeq2Seq(Seq2SeqMixin, RecurrentModel):
    """Recurrent layers that read a source, and others that write a target, with attention to the source or without.

    Both embed with one table. The decoder's states begin where the encoder's end, and without attention that is all it
    knows of the source, however long. With attention, each state `h_t` of the decoder asks the states `e_i` of the
    encoder: `Q = w_1 h_t`, `K = w_2 e_i`, `alpha_t = softmax(Q K / sqrt(D))`, `C_t = alpha_t V`, and what goes on to
    the head is `tanh(W [h_t, w_3 C_t] + b)`. Padding of the source is not looked at.

    A target begins with the start token, and what it is to become ends with the end token: to learn "ab", the decoder
    reads "start a b" and is to say "a b end" (`objectives.pairs`). In training it reads the true target (teacher
    forcing), in `generate` what it said itself. There is no longest source or target.

    The model is built when it is made: `summary()` and `count_params()` work at once.

    Args:
        vocabulary_size: Integer. Number of ids, `V`, of source and target, the marks among them.
        start_token_id: Integer. Id that a target begins with.
        end_token_id: Integer. Id that ends a target: where `generate` stops.
        cell: `"rnn"`, `"lstm"` or `"gru"`, see `RecurrentLM`. Defaults to `"gru"`.
        attention: Boolean. Whether the decoder looks at all states of the encoder. Defaults to `True`.
        num_layers: Integer. Number of recurrent layers of the encoder, and of the decoder. Defaults to `1`.
        hidden_dim: Integer. Width `D` of embeddings and states. Defaults to `128`.
        activation: Activation function of the cells, see `RecurrentLM`. Defaults to `"tanh"`.
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
        inputs: A dictionary of `"source"`, integer ids `(B, S)`, and `"target"`, `(B, T)`; as wanted,
            `"source_padding_mask"`, `(B, S)`, and `"target_padding_mask"`, `(B, T)`, True for a real token.
        return_attention_scores: Boolean. Whether to return the attention weights as well.
        return_features: Boolean. Whether to return what goes into the head, `(B, T, D)`, in place of the logits.
        training: Boolean. Whether dropout is applied.

    Returns:
        The logits, `(B, T, V)`, with Keras's implicit mask where padding of the target is known; with
        `return_attention_scores` a pair of them and a dictionary of a list, `"cross"`: `alpha`, `(B, 1, T, S)`.

    Example:

    >>> model = keras_lt.models.RecurrentSeq2Seq(vocabulary_size=30, start_token_id=28, end_token_id=29)
    >>> model({"source": np.array([[3, 1, 4, 1, 5]]), "target": np.array([[28, 9, 2]])}).shape
    (1, 3, 30)
    >>> len(model.generate({"source": [[3, 1, 4, 1, 5], [2, 7]]}, max_new_tokens=6))
    2

    Source: S2, "Attention"; "RNN", "LSTM", "GRU".
    """

    def __init__(
        self,
        vocabulary_size,
        start_token_id,
        end_token_id,
        cell="gru",
        attention=True,
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
        self.start_token_id = start_token_id
        self.end_token_id = end_token_id
        self.attention = attention
        self._check_marks()
        self.build({name: (None, None) for name in self.id_keys})

    def build(self, input_shape):
        if self.built:
            return
        self._build_embedding()
        self.encoder = self._build_stack("encoder", 0)
        self.decoder = self._build_stack("decoder", 1)
        number, features_shape = 2 * self.num_layers, (None, None, self.hidden_dim)
        if self.attention:
            initializers = {
                "kernel_initializer": spawn_initializer(self.kernel_initializer, number),
                "bias_initializer": self.bias_initializer,
            }
            self.cross_attention = CrossAttention(1, dtype=self.dtype_policy, name="cross_attention", **initializers)
            self.cross_attention.build(features_shape, features_shape)
            initializers["kernel_initializer"] = spawn_initializer(self.kernel_initializer, number + 4)
            self.combine = layers.Dense(
                self.hidden_dim, activation="tanh", dtype=self.dtype_policy, name="combine", **initializers
            )
            self.combine.build((None, None, 2 * self.hidden_dim))
        self._build_head(number + 5)

    def call(self, inputs, return_attention_scores=False, return_features=False, training=None):
        source, source_mask, target, target_mask = self._unpack(inputs)
        self._check_scores(return_attention_scores)
        encoded, states = self._encode(source, source_mask, training)
        x, _ = self.decoder(self.embedding(target), states, padding_mask=target_mask, training=training)
        x, scores = self._attend(x, source_mask, return_attention_scores, context=encoded)
        outputs = x if return_features else self._logits(x)
        return (outputs, {"cross": [scores]}) if return_attention_scores else outputs

    def build_cache(self, batch_size, max_length, source=None):
        """Read the source, and make the states before the first token of the target.

        Args:
            batch_size: Integer. Number of rows, `B`.
            max_length: Of no effect: states do not grow.
            source: Integer tensor of ids, `(B, S)`, or a dictionary of `"token_ids"` and `"padding_mask"`, `(B, S)`,
                True for a real token.

        Returns:
            A dictionary of tensors whose first axis is the row: `"states"`, of each layer a list of tensors of shape
            `(B, D)`, for `"lstm"` two; with attention the keys and values of the `"source"`, and where padding is
            known `"source_padding_mask"`.
        """
        token_ids, source_mask = self._unpack_source(source)
        encoded, states = self._encode(token_ids, source_mask, training=False)
        cache = {"states": states}
        if self.attention:
            cache["source"] = self.cross_attention.build_cache(encoded)
            if source_mask is not None:
                cache["source_padding_mask"] = source_mask
        return cache

    def call_with_cache(self, token_ids, cache, start_index, lengths=None):
        """Logits of new tokens, given the states after those before them.

        Args:
            token_ids: Integer tensor of shape `(B, T)`, the new tokens of the target.
            cache: As from `build_cache`, or from the call before.
            start_index: Of no effect: a state does not know how many tokens it has seen.
            lengths: Integer tensor of shape `(B,)`: how many of the new tokens of each row are real. The others change
                nothing, and their logits mean nothing. Defaults to `None`, all.

        Returns:
            A pair of the logits, `(B, T, V)`, and the new cache.
        """
        token_ids, padding_mask = self._new_tokens(token_ids, lengths)
        x = self.embedding(token_ids)
        x, states = self.decoder(x, cache["states"], padding_mask=padding_mask, training=False)
        x, _ = self._attend(x, cache.get("source_padding_mask"), False, cache=cache.get("source"))
        return self._logits(x), {**cache, "states": states}

    def compute_output_spec(self, inputs, return_attention_scores=False, return_features=False, training=None):
        self._check_scores(return_attention_scores)
        source, _, target, _ = self._unpack(inputs, symbolic=True)
        width = self.hidden_dim if return_features else self.vocabulary_size
        outputs = self._symbolic(*target.shape, width)
        if not return_attention_scores:
            return outputs
        return outputs, {"cross": [self._symbolic(target.shape[0], 1, target.shape[1], source.shape[1])]}

    def get_config(self):
        own = {name: getattr(self, name) for name in ("start_token_id", "end_token_id", "attention")}
        return {**super().get_config(), **own}

    def _encode(self, source, source_mask, training):
        """The outputs of the last layer of the encoder, `(B, S, D)`, and the states of all after the source."""
        states = self.encoder.initial_states(ops.shape(source)[0])
        return self.encoder(self.embedding(source), states, padding_mask=source_mask, training=training)

    def _attend(self, x, source_mask, return_attention_scores, **source):
        """What goes into the head, `(B, T, D)`, and the attention weights or `None`."""
        if not self.attention:
            return x, None
        arguments = {"padding_mask": source_mask, "return_attention_scores": return_attention_scores}
        results = self.cross_attention(x, **source, **arguments)
        context, scores, _ = unpack_results(results, return_attention_scores, "cache" in source)
        return self.combine(ops.concatenate([x, context], axis=-1)), scores

    def _check_scores(self, return_attention_scores):
        if return_attention_scores and not self.attention:
            raise ValueError(
                "This model looks at nothing: it has attention=False. Received: return_attention_scores=True"
            )
