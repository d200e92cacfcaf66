"""S3's two tables and S1's scaled table plus sinusoids, against NumPy; what padding, positions and wrong ids do."""

import re

import keras
import numpy as np
import pytest

from keras_lt.backend import implicit_mask
from keras_lt.layers import TokenPositionEmbedding
from layer_testing import LEAN_MODES, NumPyNormal, cached, float64, sinusoids
from testing import MODES, assert_close, needs_tensorflow, run, to_numpy, weight_gradient

B, T, D, V, P = 3, 7, 5, 17, 13
OPTIONS = {
    "learned": {},
    "sinusoidal": {"position": "sinusoidal", "scale": True},
    "tokens_alone": {"position": None},
    "mask_zero": {"mask_zero": True, "scale": True},
}
COMPILED = [mode for mode in MODES if mode != "eager"]

every_mode = pytest.mark.parametrize("mode", LEAN_MODES)
every_option = pytest.mark.parametrize("option", OPTIONS)
needs_compilation = pytest.mark.skipif(not COMPILED, reason="nothing is compiled on this backend")


@cached
def layer_of(option, dtype="float32"):
    layer = TokenPositionEmbedding(V, P, D, embeddings_initializer=NumPyNormal(), dtype=dtype, **OPTIONS[option])
    layer.build((None, None))
    return layer


def ids(seed=0, shape=(B, T)):
    return np.random.default_rng(seed).integers(1, V, shape).astype("int32")


def expected_embedding(layer, token_ids, positions):
    """S1's `W + P` (which scales `W`), S3's `token_emb + position_emb`; `positions` are those of the tokens."""
    result = float64(layer.token_embedding.embeddings)[token_ids] * (np.sqrt(D) if layer.scale else 1)
    if layer.position == "learned":
        result = result + float64(layer.position_embeddings)[positions]
    if layer.position == "sinusoidal":
        result = result + sinusoids(P, D)[positions]
    return result


def count_real(mask):
    """The position of each token among the real ones of its row; a padded one gets 0."""
    positions = np.zeros(mask.shape, int)
    for row, real in enumerate(mask):
        positions[row, real] = range(real.sum())
    return positions


# Values


@every_mode
@every_option
def test_values_are_those_of_the_equations(option, mode):
    layer = layer_of(option)
    padding = np.random.default_rng(1).random((B, T)) < 0.6
    given, starts = np.random.default_rng(2).integers(0, P, (B, T)), np.array([4, 0, 6], "int32")

    def function(token_ids, padding, positions, starts):
        results = [layer(token_ids), layer(token_ids, start_index=starts), layer(token_ids, start_index=starts[0])]
        results += [layer(token_ids, padding_mask=padding), layer(token_ids, padding_mask=padding, start_index=starts)]
        return [*results, layer(token_ids, positions=positions), layer(token_ids[:, :1])]

    arguments = ids(), padding, given, starts
    plain, by_row, by_scalar, padded, padded_from, placed, first = run(mode, function, *arguments)

    order, counted = np.broadcast_to(np.arange(T), (B, T)), count_real(padding)
    assert_close(plain, expected_embedding(layer, ids(), order))
    assert_close(by_row, expected_embedding(layer, ids(), order + starts[:, None]))
    assert_close(by_scalar, expected_embedding(layer, ids(), order + starts[0]))
    assert_close(padded[padding], expected_embedding(layer, ids(), counted)[padding])
    assert_close(padded_from[padding], expected_embedding(layer, ids(), counted + starts[:, None])[padding])
    assert_close(placed, expected_embedding(layer, ids(), given))
    assert_close(first, plain[:, :1])
    assert np.isfinite(padded).all()


@every_mode
def test_padding_ids_count_for_nothing(mode):
    layer = layer_of("mask_zero")
    alone = ids(3, (1, 3))
    real = expected_embedding(layer, alone, np.arange(3)[None])[0]
    padded = np.zeros((3, T), "int32")
    padded[0, :3], padded[1, 4:], padded[2, [1, 3, 6]] = alone, alone, alone

    result = run(mode, layer, padded)

    for row in (result[0, :3], result[1, 4:], result[2, [1, 3, 6]]):
        assert_close(row, real)


@every_mode
def test_gradients_count_the_tokens(mode):
    layer, token_ids = layer_of("mask_zero"), np.array([[3, 0, 3], [3, 5, 0]])
    gradients = weight_gradient(mode, layer, layer, token_ids)
    paths = [variable.path for variable in layer.trainable_variables]
    by_token = gradients[paths.index(layer.token_embedding.embeddings.path)]
    by_position = gradients[paths.index(layer.position_embeddings.path)]
    tokens, positions = np.zeros((V, D)), np.zeros((P, D))
    tokens[[0, 3, 5]] = np.sqrt(D) * np.array([[2], [3], [1]])
    positions[:2] = [[4], [2]]  # padded places have position 0, too
    assert_close(by_token, tokens)
    assert_close(by_position, positions)


def test_the_default_is_the_chapter():
    layer = TokenPositionEmbedding(65, 11, 32)
    layer.build((None, None))
    assert layer.count_params() == 65 * 32 + 11 * 32
    for table in (layer.token_embedding.embeddings, layer.position_embeddings):
        assert abs(float64(table).std() - 0.02) < 0.002


def test_the_table_serves_as_head_as_well():
    layer, x = layer_of("sinusoidal"), np.random.default_rng(4).normal(size=(B, T, D)).astype("float32")
    logits = layer.token_embedding(x, reverse=True)
    assert_close(logits, float64(x) @ float64(layer.token_embedding.embeddings).T)
    assert len(layer.variables) == 1


# Types


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int32", "int64", "float32", "float64"])
def test_any_type_of_ids(dtype):
    layer = layer_of("learned")
    assert_close(layer(ids().astype(dtype)), to_numpy(layer(ids())), tolerance=0)


@pytest.mark.parametrize("dtype", ["mixed_float16", "float16", "mixed_bfloat16", "bfloat16"])
def test_low_precision_keeps_ids_and_positions(dtype):
    layer = TokenPositionEmbedding(5000, 3000, 3, dtype=dtype, embeddings_initializer=NumPyNormal(0.02))
    layer.build((None, None))
    # float16 counts in steps of 2 from 2,048 on, bfloat16 from 256 on
    token_ids = np.array([[2049, 4097, 4999, 257, 3]])

    outputs = [layer(token_ids, start_index=2993), layer(token_ids.astype("float32"), start_index=2993)]

    rows = float64(layer.token_embedding.embeddings)[token_ids[0]], float64(layer.position_embeddings)[2993:2998]
    for output in outputs:
        assert keras.backend.standardize_dtype(output.dtype) == layer.compute_dtype
        # two roundings of numbers below 0.1, to 11 and 8 bits
        assert_close(output[0], rows[0] + rows[1], 0.001 if "bfloat" in dtype else 0.0001)


def test_inputs_of_keras_default_type():
    layer, inputs = layer_of("mask_zero"), keras.Input((None,))
    model = keras.Model(inputs, layer(inputs))
    assert model.output_shape == (None, None, D)
    # An odd last batch, too
    result = model.predict(ids(shape=(5, T)), batch_size=3, verbose=0)
    assert_close(result, expected_embedding(layer, ids(shape=(5, T)), np.arange(T)))


# Masks


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_implicit_mask(dtype):
    token_ids = np.array([[0, 3, 0, 5]], dtype)
    assert implicit_mask(layer_of("learned")(token_ids)) is None
    np.testing.assert_array_equal(to_numpy(implicit_mask(layer_of("mask_zero")(token_ids))), token_ids != 0)


# Out of range


@pytest.mark.parametrize(
    ("token_ids", "message"),
    [
        ([[3, 4], [5, V]], "from 0 to 16 (vocabulary_size=17). Received: 17 at [1, 1], and 0 more"),
        ([[3, -1], [-2, 1]], "Received: -1 at [0, 1], and 1 more"),
        ([[3, 2.5]], "must be whole numbers from 0 to 16 (vocabulary_size=17). Received: 2.5 at [0, 1]"),
        ([[np.nan, 2]], "Received: nan at [0, 0]"),
        ([[np.inf, 2]], "Received: inf at [0, 0]"),
    ],
)
def test_eager_ids_out_of_range_are_an_error(token_ids, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        layer_of("learned")(np.array(token_ids))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"start_index": 7}, "from 0 to 12 (max_sequence_length=13). Received: 13 at [0, 6]"),
        ({"start_index": np.array([0, 8, 0])}, "Received: 13 at [1, 5], and 1 more"),
        ({"start_index": -1}, "Received: -1 at [0, 0]"),
        ({"positions": np.full((B, T), P)}, "Received: 13 at [0, 0], and 20 more"),
        ({"positions": np.full((B, T), -2)}, "Received: -2 at [0, 0], and 20 more"),
    ],
)
def test_eager_positions_out_of_range_are_an_error(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        layer_of("sinusoidal")(ids(), **arguments)


@every_mode
def test_more_tokens_than_positions_are_an_error(mode):
    for option in ("learned", "sinusoidal", "tokens_alone"):
        layer = layer_of(option)
        with pytest.raises(ValueError, match=r"At most 13 tokens .*max_sequence_length=13.*Received: 14 tokens"):
            run(mode, layer, ids(shape=(B, P + 1)))
        assert run(mode, layer, ids(shape=(B, P))).shape == (B, P, D)


def test_padding_needs_no_positions():
    token_ids = ids(shape=(1, P + 4))
    token_ids[:, :5] = 0
    layer = layer_of("mask_zero")
    assert_close(layer(token_ids)[:, 5:], expected_embedding(layer, token_ids[:, 5:], np.arange(P - 1)))


def test_without_a_limit_any_length_will_do():
    layer = TokenPositionEmbedding(V, None, D, position=None)
    token_ids = ids(shape=(B, 101))
    assert_close(layer(token_ids), float64(layer.token_embedding.embeddings)[token_ids])


@needs_compilation
@pytest.mark.parametrize("mode", COMPILED)
@every_option
def test_compiled_ids_and_positions_out_of_range_are_nan(option, mode):
    layer = layer_of(option)
    exact, wrong_exact = ids(), np.zeros((B, T), bool)
    wrong_exact[0, 2] = wrong_exact[1, 0] = wrong_exact[1, 6] = True
    exact[0, 2], exact[1, 0], exact[1, 6] = V, -1, 2**31 - 1
    floats, wrong_floats = ids().astype("float32"), np.zeros((B, T), bool)
    wrong_floats[0, 2:5] = wrong_floats[1, 6] = wrong_floats[2, 0] = True
    floats[0, 2:5], floats[1, 6], floats[2, 0] = (V, -1, 2.5), np.nan, np.inf
    starts, given = np.array([0, 8, -2], "int32"), ids(5)
    given[1, 3], given[2, 0] = P, -1
    places = starts[:, None] + np.arange(T)

    def function(exact, floats, token_ids, starts, given):
        by_start, by_position = layer(token_ids, start_index=starts), layer(token_ids, positions=given % (P + 1))
        return layer(exact), layer(floats), by_start, by_position

    results = run(mode, function, exact, floats, ids(), starts, given)

    wrong_places = [(positions < 0) | (positions >= P) for positions in (places, given % (P + 1))]
    for result, wrong in zip(results, (wrong_exact, wrong_floats, *wrong_places), strict=True):
        np.testing.assert_array_equal(np.isnan(result), np.broadcast_to(wrong[..., None], result.shape))


@needs_tensorflow
def test_a_length_not_known_when_compiling():
    import tensorflow as tf

    for option in ("learned", "sinusoidal", "mask_zero"):
        layer = layer_of(option)
        function = tf.function(layer, input_signature=[tf.TensorSpec((None, None), "int32")])
        assert_close(function(ids()), to_numpy(layer(ids())))
        result = to_numpy(function(ids(shape=(2, P + 2))))
        assert np.isnan(result[:, P:]).all()
        assert np.isfinite(result[:, :P]).all()


# Shapes and arguments


def test_shapes():
    layer = layer_of("learned")
    assert layer.compute_output_shape((B, T)) == (B, T, D)
    assert layer(keras.Input((None,), dtype="int32")).shape == (None, None, D)
    for shape in ((B, 1), (1, T), (B, 0), (B, P)):
        assert tuple(layer(ids(shape=shape)).shape) == (*shape, D)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"padding_mask": np.ones((B, T + 1), bool)},
            "`padding_mask` must have the shape (3, 7). Received: padding_mask.shape=(3, 8)",
        ),
        ({"padding_mask": np.ones((1, T), bool)}, "(3, 7). Received: padding_mask.shape=(1, 7)"),
        (
            {"positions": np.zeros((B, 1), int)},
            "`positions` must have the shape (3, 7). Received: positions.shape=(3, 1)",
        ),
        ({"positions": np.zeros(T, int)}, "(3, 7). Received: positions.shape=(7,)"),
        ({"start_index": np.zeros(T, int)}, "() or (3,). Received: start_index.shape=(7,)"),
        ({"start_index": np.zeros((B, 1), int)}, "() or (3,). Received: start_index.shape=(3, 1)"),
    ],
)
def test_a_wrong_shape_is_an_error_that_says_both(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        layer_of("learned")(ids(), **arguments)


def test_ids_of_another_rank_are_an_error():
    for layer in (layer_of("learned"), TokenPositionEmbedding(V, P, D)):
        for shape in ((T,), (B, T, 1)):
            with pytest.raises(ValueError, match=f"expected ndim=2, found ndim={len(shape)}"):
                layer(ids(shape=shape))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocabulary_size": 0}, "vocabulary_size=0"),
        ({"hidden_dim": -1}, "hidden_dim=-1"),
        ({"max_sequence_length": None}, "max_sequence_length=None"),
        ({"max_sequence_length": 1.5, "position": None}, "max_sequence_length=1.5"),
        ({"position": "rotary"}, "position='rotary'"),
    ],
)
def test_wrong_arguments_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        TokenPositionEmbedding(**{"vocabulary_size": V, "max_sequence_length": P, "hidden_dim": D, **arguments})
