"""How kernels start: each with the variance it would have alone, none equal to another, all of it reproducible."""

import itertools

import keras
import numpy as np
import pytest

from keras_lt.layers import (
    CausalMultiHeadAttention,
    CrossAttention,
    FeedForward,
    TokenPositionEmbedding,
    TransformerBlock,
)
from keras_lt.layers.initialization import projection_initializer, spawn_initializer, spawn_seed
from layer_testing import FAST_MODE, float64
from testing import assert_close, run, to_numpy

# Large, so that the largest of the numbers comes near the bound: N, K, H, D, C, F
N, K, H, D, C, F = 6, 2, 37, 101, 149, 211


def attention_kernels(initializer, cross):
    options = {"num_heads": N, "head_dim": H, "num_key_value_heads": K, "kernel_initializer": initializer}
    layer = CrossAttention(**options) if cross else CausalMultiHeadAttention(**options)
    layer.build(*[(None, None, D), (None, None, C)][: 1 + cross])
    return [float64(getattr(layer, f"{name}_kernel")) for name in ("query", "key", "value", "output")]


@pytest.mark.parametrize("cross", [False, True])
def test_attention_kernels_keep_to_their_own_glorot_bounds(cross):
    kernels = attention_kernels("glorot_uniform", cross)
    context = C if cross else D
    for kernel, fan_in, fan_out in zip(kernels, (D, context, context, N * H), (N * H, K * H, K * H, D), strict=True):
        bound = np.sqrt(6 / (fan_in + fan_out))
        assert 0.998 * bound < np.abs(kernel).max() <= bound * (1 + 1e-6)
        # Of 7,000 numbers or more the variance is known to 1 %, one standard deviation.
        assert abs(kernel.var() / (bound**2 / 3) - 1) < 0.04
        assert abs(kernel.mean()) < 4 * kernel.std() / np.sqrt(kernel.size)


def test_attention_kernels_with_other_initializers():
    for kernel, fan_in in zip(attention_kernels("he_normal", False), (D, D, D, N * H), strict=True):
        assert abs(kernel.var() / (2 / fan_in) - 1) < 0.05
    for kernel in attention_kernels(keras.initializers.Constant(0.3), False):
        assert_close(kernel, np.full_like(kernel, 0.3))


def test_orthogonal_kernels_are_orthogonal_as_matrices():
    query, key, _, output = attention_kernels("orthogonal", False)
    matrix = np.concatenate(list(key), axis=-1)  # (D, K * H), more rows than columns
    assert_close(matrix.T @ matrix, np.eye(K * H), 1e-5)  # sums of 101 products
    matrix = np.concatenate(list(query), axis=-1)  # (D, N * H), more columns than rows
    assert_close(matrix @ matrix.T, np.eye(D), 1e-5)
    matrix = output.reshape(N * H, D)
    assert_close(matrix.T @ matrix, np.eye(D), 1e-5)


@pytest.mark.parametrize("gated", [False, True])
def test_feed_forward_kernels_keep_to_their_own_glorot_bounds(gated):
    layer = FeedForward(F, gated=gated)
    layer.build((None, None, D))
    halves = np.split(float64(layer.intermediate.kernel), 2 if gated else 1, axis=1)
    for kernel in (*halves, float64(layer.output_projection.kernel)):
        bound = np.sqrt(6 / (D + F))
        assert 0.998 * bound < np.abs(kernel).max() <= bound * (1 + 1e-6)
        assert abs(kernel.var() / (bound**2 / 3) - 1) < 0.04
    assert len({kernel.sum() for kernel in halves}) == len(halves)


# Seeds


def block(**arguments):
    options = {"num_heads": 3, "head_dim": 5, "gated": True, "intermediate_dim": 15, **arguments}
    layer = TransformerBlock(**options)
    layer.build((None, None, 15), (None, None, 15))
    return layer


def square_kernels(layer):
    """Every matrix of a block whose sizes are such that all of them are 15 by 15."""
    kernels = []
    for attention in (layer.attention, layer.cross_attention):
        for name in ("query", "key", "value"):
            kernels.append(np.concatenate(list(float64(getattr(attention, f"{name}_kernel"))), axis=-1))
        kernels.append(float64(attention.output_kernel).reshape(15, 15))
    kernels += np.split(float64(layer.feed_forward.intermediate.kernel), 2, axis=1)
    return [*kernels, float64(layer.feed_forward.output_projection.kernel)]


@pytest.mark.parametrize("seed", [11, None, "generator"])
def test_no_two_kernels_of_a_block_start_as_equals(seed):
    seed = keras.random.SeedGenerator(5) if seed == "generator" else seed
    kernels = square_kernels(block(kernel_initializer=keras.initializers.GlorotUniform(seed)))
    assert len(kernels) == 11
    for one, other in itertools.combinations(kernels, 2):
        assert np.abs(one - other).max() > 0.1
        assert abs(np.corrcoef(one.ravel(), other.ravel())[0, 1]) < 0.35


def test_a_seeded_initializer_gives_the_same_block_again():
    initializer = keras.initializers.GlorotUniform(seed=11)
    for one, other in zip(*(square_kernels(block(kernel_initializer=initializer)) for _ in range(2)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_the_two_tables_of_an_embedding_differ():
    layer = TokenPositionEmbedding(13, 13, 5, embeddings_initializer=keras.initializers.RandomNormal(seed=3))
    layer.build((None, None))
    assert np.abs(float64(layer.token_embedding.embeddings) - float64(layer.position_embeddings)).max() > 0.01


def test_set_random_seed_reproduces_weights_and_dropout():
    outputs = []
    for seed in (3, 3, 4):
        keras.utils.set_random_seed(seed)
        layer = block(dropout=0.3)
        x = np.random.default_rng(0).normal(size=(2, 7, 15)).astype("float32")
        outputs.append(run(FAST_MODE, lambda x, layer=layer: layer(x, x, training=True), x))
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert np.abs(outputs[0] - outputs[2]).max() > 0.1


@pytest.mark.parametrize("seed", [11, None])
def test_the_layers_of_a_block_drop_different_places(seed):
    layer = block(dropout=0.5, seed=seed)
    dropouts = [part.dropout_layer for part in (layer, layer.attention, layer.cross_attention, layer.feed_forward)]
    states = [tuple(to_numpy(dropout.seed_generator.state.value)) for dropout in dropouts]
    assert len(set(states)) == 4
    if seed is not None:
        again = block(dropout=0.5, seed=seed)
        assert tuple(to_numpy(again.attention.dropout_layer.seed_generator.state.value)) == states[1]


def test_spawn_seed():
    assert spawn_seed(None, 3) is None
    assert [spawn_seed(7, number) for number in range(3)] == [7, 8, 9]


@pytest.mark.parametrize("initializer", [keras.initializers.RandomNormal(seed=2), keras.initializers.RandomNormal()])
def test_spawned_initializers_draw_other_numbers_of_the_same_kind(initializer):
    values = [float64(spawn_initializer(initializer, number)((50, 50))) for number in range(3)]
    for one, other in itertools.combinations(values, 2):
        assert (one != other).mean() > 0.99
    for value in values:
        assert abs(value.std() / 0.05 - 1) < 0.1
    assert (float64(initializer((50, 50))) == values[0]).all() == (initializer.get_config()["seed"] == 2)


def test_initializers_without_a_seed_stay_what_they_are():
    for initializer in (keras.initializers.Ones(), keras.initializers.Constant(2.0), lambda shape, dtype=None: shape):
        assert spawn_initializer(initializer, 5) is initializer


def test_projection_initializer_lays_matrices_side_by_side():
    calls = []

    def numbered(shape, dtype=None):
        calls.append((tuple(shape), dtype))
        return np.full(shape, len(calls), "float32")

    kernel = to_numpy(projection_initializer(numbered, [4, 2, 1])((5, 7), dtype="float32"))

    assert calls == [((5, 4), "float32"), ((5, 2), "float32"), ((5, 1), "float32")]
    np.testing.assert_array_equal(kernel, np.broadcast_to([1, 1, 1, 1, 2, 2, 3], (5, 7)))
