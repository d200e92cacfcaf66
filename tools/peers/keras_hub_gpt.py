"""A GPT of KerasHub's layers, put together and trained as its users do."""


def make_model(vocabulary_size, max_sequence_length, num_layers, num_heads, hidden_dim, activation):
    """A functional `keras.Model` from ids to logits."""
    import keras
    import keras_hub

    inputs = keras.Input((max_sequence_length,), dtype="int32")
    x = keras_hub.layers.TokenAndPositionEmbedding(vocabulary_size, max_sequence_length, hidden_dim)(inputs)
    for _ in range(num_layers):
        x = keras_hub.layers.TransformerDecoder(
            4 * hidden_dim, num_heads, activation=activation, normalize_first=True, dropout=0.0
        )(x)
    x = keras.layers.LayerNormalization()(x)
    return keras.Model(inputs, keras.layers.Dense(vocabulary_size)(x))


def compile_model(model, learning_rate: float = 1e-3, **options):
    """Compile it with Adam and cross-entropy; the options are those of `keras.Model.compile`."""
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(learning_rate), loss, **options)
    return model
