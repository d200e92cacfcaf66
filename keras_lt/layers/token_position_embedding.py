import keras
from keras import initializers, layers, ops

from keras_lt.backend import check_ids, check_positive_integer
from keras_lt.layers.composite_layer import QuantizableMixin, check_shape
from keras_lt.layers.initialization import spawn_initializer
from keras_lt.ops.ids import is_id, nan_unless
from keras_lt.ops.masks import combine_masks
from keras_lt.ops.positions import sinusoidal_positions

POSITIONS = ("learned", "sinusoidal", None)


@keras.saving.register_keras_serializable(package="keras_lt")
class TokenPositionEmbedding(QuantizableMixin, keras.layers.Layer):
    """The embedding of each token plus the encoding of its position.

    `X = E[id] + P[position]` with a learned table `P` (S3), or `X = sqrt(D) E[id] + P[position]` with sinusoids (S1:
    `position="sinusoidal", scale=True`). Where padding is known (`padding_mask`, or id 0 under `mask_zero`), positions
    count the real tokens, so that padding before or between them changes nothing.

    An id or a position out of range is a `ValueError` in eager mode; in a compiled function, which cannot raise, its
    place becomes NaN.

    Args:
        vocabulary_size: Integer. Number of ids, `V`.
        max_sequence_length: Integer. Number of positions; `None`, no limit, only where `position` is `None`.
        hidden_dim: Integer. Width `D` of an embedding.
        position: `"learned"`, `"sinusoidal"`, or `None` for tokens alone. Defaults to `"learned"`.
        scale: Boolean. Whether token embeddings are multiplied by `sqrt(D)`. Defaults to `False`.
        mask_zero: Boolean. Whether id 0 is padding, which the output's implicit mask then says. Defaults to `False`.
        embeddings_initializer: Initializer of the tables. Defaults to `None`, that is normal with standard deviation
            0.02.

    Call arguments:
        inputs: Integer tensor of ids, `(B, T)`.
        padding_mask: Boolean tensor of shape `(B, T)`, True for a real token.
        start_index: Integer, or integer tensor of shape `()` or `(B,)`: the position of the first token. Defaults to
            `None`, that is 0.
        positions: Integer tensor of shape `(B, T)`: the position of each token, in place of counting.

    Returns:
        A tensor of shape `(B, T, D)`.

    Example:

    >>> layer = keras_lt.layers.TokenPositionEmbedding(65, 64, 32)
    >>> layer(np.array([[18, 47, 56]])).shape
    (1, 3, 32)

    Source: S1, `W + P`; S3, `emb`.
    """

    def __init__(
        self,
        vocabulary_size,
        max_sequence_length,
        hidden_dim,
        position="learned",
        scale=False,
        mask_zero=False,
        embeddings_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.max_sequence_length = max_sequence_length
        self.hidden_dim = hidden_dim
        self.position = position
        self.scale = scale
        self.mask_zero = mask_zero
        if embeddings_initializer is None:
            embeddings_initializer = initializers.RandomNormal(stddev=0.02)
        self.embeddings_initializer = initializers.get(embeddings_initializer)
        self.supports_masking = True
        self.input_spec = layers.InputSpec(ndim=2)
        # Ids stay what they are: float16 does not hold them.
        self.autocast = False
        self.vocabulary_size = check_positive_integer("vocabulary_size", vocabulary_size)
        self.hidden_dim = check_positive_integer("hidden_dim", hidden_dim)
        self.max_sequence_length = check_positive_integer(
            "max_sequence_length", max_sequence_length, optional=position is None
        )
        if position not in POSITIONS:
            raise ValueError(f"`position` must be one of {POSITIONS}. Received: position={position!r}")

    def build(self, input_shape):
        self.token_embedding = layers.ReversibleEmbedding(
            self.vocabulary_size,
            self.hidden_dim,
            embeddings_initializer=spawn_initializer(self.embeddings_initializer, 0),
            dtype=self.dtype_policy,
            name="token_embedding",
        )
        self.token_embedding.build(input_shape)
        # Turned round, to be the head, it meets masked features, and Keras would warn of a mask that is lost.
        self.token_embedding.supports_masking = True
        if self.position == "learned":
            self.position_embeddings = self.add_weight(
                shape=(self.max_sequence_length, self.hidden_dim),
                initializer=spawn_initializer(self.embeddings_initializer, 1),
                name="position_embeddings",
            )
        elif self.position == "sinusoidal":
            # A NumPy array: a tensor made while a graph is traced could not be used outside that graph.
            self._sinusoids = sinusoidal_positions(self.max_sequence_length, self.hidden_dim)
        self.finish_build()

    def call(self, inputs, padding_mask=None, start_index=None, positions=None):
        check_ids(inputs, self.vocabulary_size)
        token_ids = ops.cast(inputs, "int32")
        known = ops.logical_and(is_id(token_ids, self.vocabulary_size), ops.equal(token_ids, inputs))
        x = self.token_embedding(ops.where(known, token_ids, 0))  # (B, T, D)
        if self.scale:
            x = x * ops.cast(self.hidden_dim**0.5, x.dtype)
        positions = self._positions(token_ids, padding_mask, start_index, positions)
        if positions is not None:
            inside = is_id(positions, self.max_sequence_length)
            known = ops.logical_and(known, inside)
            positions = ops.where(inside, positions, 0)
        table = self._table()
        if table is not None:
            length = token_ids.shape[1]
            x = x + ops.cast(table[:length] if positions is None else ops.take(table, positions, axis=0), x.dtype)
        return nan_unless(ops.expand_dims(known, -1), x)

    def compute_mask(self, inputs, previous_mask=None):
        if not self.mask_zero:
            return previous_mask
        real = ops.not_equal(inputs, 0)
        return real if previous_mask is None else ops.logical_and(real, previous_mask)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.hidden_dim)

    def _table(self):
        if self.position == "learned":
            return ops.convert_to_tensor(self.position_embeddings)
        return self._sinusoids if self.position == "sinusoidal" else None

    def _positions(self, token_ids, padding_mask, start_index, positions):
        """The position of each token, broadcasting to (B, T); `None` where it is 0, 1, ... and surely in range."""
        batch_size, length = token_ids.shape
        check_shape("padding_mask", padding_mask, (batch_size, length))
        check_shape("positions", positions, (batch_size, length))
        check_shape("start_index", start_index, (), (batch_size,))
        if self.max_sequence_length is None:
            return None
        if padding_mask is not None:
            padding_mask = ops.cast(padding_mask, "bool")
        if self.mask_zero:
            padding_mask = combine_masks(padding_mask, ops.not_equal(token_ids, 0))
        if positions is None and padding_mask is None:
            # While JAX exports for every length, a length is an expression that cannot be compared.
            if start_index is None and isinstance(length, int):
                if length > self.max_sequence_length:
                    raise ValueError(
                        f"At most {self.max_sequence_length} tokens have a position "
                        f"(max_sequence_length={self.max_sequence_length}). Received: {length} tokens a sequence"
                    )
                return None
            positions = ops.expand_dims(ops.arange(ops.shape(token_ids)[1], dtype="int32"), 0)
        elif positions is None:
            positions = ops.cumsum(ops.cast(padding_mask, "int32"), axis=1) - 1
        positions = ops.cast(positions, "int32")
        if start_index is not None:
            positions = positions + ops.reshape(ops.cast(start_index, "int32"), (-1, 1))
        if padding_mask is not None:
            positions = ops.where(padding_mask, positions, 0)
        check_ids(positions, self.max_sequence_length, "positions", "max_sequence_length")
        return positions

    def get_config(self):
        config = super().get_config()
        config.update(
            {
                "vocabulary_size": self.vocabulary_size,
                "max_sequence_length": self.max_sequence_length,
                "hidden_dim": self.hidden_dim,
                "position": self.position,
                "scale": self.scale,
                "mask_zero": self.mask_zero,
                "embeddings_initializer": initializers.serialize(self.embeddings_initializer),
            }
        )
        return config
