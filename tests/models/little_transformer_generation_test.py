"""LittleTransformer generates: the laws of decoding for every option, and weights that change."""

import keras
import numpy as np
import pytest

from keras_lt.models import LittleTransformer, presets
from model_testing import OPTIONS, check_cache, check_generation, random_ids, small
from testing import BACKEND, MODES, assert_close, to_numpy

# Every option is in one of these, but for those that only decide how weights are drawn.
FORMS = {
    "default": (),
    "sizes": ("vocabulary_size", "num_heads", "hidden_dim", "head_dim", "intermediate_dim", "num_layers"),
    "feed_forward": ("activation", "gated", "feed_forward_bias", "layer_norm_epsilon", "dropout"),
    "attention": ("num_key_value_heads", "attention_bias"),
    "named_tensor": {name: presets.NAMED_TENSOR[name] for name in ("norm_first", "position", "scale_embeddings")},
    "tie_embeddings": ("tie_embeddings", "norm_first", "scale_embeddings"),
    "mask_zero": ("mask_zero", "max_sequence_length"),
    "rotary": ("position",),
    "window": ("window_size",),
    "no_positions": {"position": None},
    "no_limit": {"position": "rotary", "max_sequence_length": None},
    "rolling": {"position": "rotary", "window_size": 5, "num_key_value_heads": 1, "num_layers": 2},
    "rolling_without_positions": {"position": None, "window_size": 4, "norm_first": False, "num_layers": 2},
    "too_wide_to_roll": {"position": "rotary", "window_size": 8, "num_layers": 2},
}
WEIGHTS_ONLY = {"embeddings_initializer", "kernel_initializer", "bias_initializer", "seed"}


def arguments(form):
    options = FORMS[form]
    return options if isinstance(options, dict) else {name: OPTIONS[name] for name in options}


def test_every_option_is_in_a_form():
    assert {name for form in FORMS for name in arguments(form)} | WEIGHTS_ONLY == set(OPTIONS)


@pytest.fixture(scope="module", params=FORMS)
def form(request):
    return request.param, small(**{"num_layers": 1, **arguments(request.param)})


def prompts(model, *lengths):
    return [random_ids(60, vocabulary_size=model.vocabulary_size)[7 * n : 7 * n + m] for n, m in enumerate(lengths)]


def test_generation_equals_plain_calls(form):
    """Unequal prompts, one longer than the context, all of them generated past it."""
    _, model = form
    check_generation(model, prompts(model, 3, 1, 21, 11), max_new_tokens=9)


@pytest.mark.parametrize("mode", MODES)
def test_cached_equals_uncached(form, mode):
    """Eagerly for every form; compiled, where `generate` does the same, for three."""
    name, model = form
    if (mode == "eager") == (BACKEND == "jax") or (mode != "eager" and name not in ("default", "mask_zero", "rolling")):
        pytest.skip("compiled for three forms; eagerly not on JAX, which compiles each operation alone")
    check_cache(mode, model, random_ids(5, 11, vocabulary_size=model.vocabulary_size))


@pytest.mark.parametrize("side", ["left", "inside"])
def test_zeros_in_a_prompt_are_padding(side):
    model = small(mask_zero=True, num_layers=1)
    tokens = random_ids(6)
    padded = np.insert(tokens, [0, 0] if side == "left" else [2, 4, 4], 0)
    (alone,), (row,) = (model.generate([prompt], 5) for prompt in (tokens, padded))
    np.testing.assert_array_equal(row[len(padded) :], alone[len(tokens) :])
    check_cache(MODES[0] if BACKEND == "tensorflow" else MODES[-1], model, np.tile(padded[:8], (3, 2))[:, :11])


def test_trailing_zeros_of_an_array_are_padding():
    model = small(mask_zero=True, num_layers=1)
    rows = model.generate(np.array([[5, 6, 7, 8], [9, 4, 0, 0]]), 5)
    assert [len(row) for row in rows] == [9, 7]
    np.testing.assert_array_equal(rows[1], model.generate([[9, 4]], 5)[0])


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision(dtype):
    model = small(dtype=dtype, num_layers=1)
    cache = model.build_cache(2, 7)
    assert {keras.backend.standardize_dtype(x.dtype) for x in keras.tree.flatten(cache)} == {dtype[6:]}
    rows, log_probs = model.generate(prompts(model, 3, 5), 9, return_log_probs=1)
    for row, found in zip(rows, log_probs, strict=True):
        logits = to_numpy(keras.ops.cast(model(row[None, :-1]), "float32"))[0]
        expected = to_numpy(keras.ops.log_softmax(logits))[-9:]
        assert_close(found["chosen"], np.take_along_axis(expected, row[-9:, None], 1)[:, 0], 0.1)


def check_is_seen(model, before):
    """What is generated is what the weights of now give, and not what those of before gave."""
    after, log_probs = model.generate(prompts(model, 3, 5), 7, return_log_probs=1)
    for row, found in zip(after, log_probs, strict=True):
        expected = to_numpy(keras.ops.log_softmax(keras.ops.cast(model(row[None, :-1]), "float32")))[0, -7:]
        assert_close(found["chosen"], expected.max(-1), 1e-4)  # int8 products round
    assert any(
        np.abs(one["chosen"] - other["chosen"]).max() > 1e-3 for one, other in zip(before, log_probs, strict=True)
    )
    return log_probs


def test_changed_weights_are_seen(tmp_path):
    model = small(num_layers=1, hidden_dim=24)
    model.compile(optimizer=keras.optimizers.SGD(0.5), jit_compile=False if BACKEND == "tensorflow" else "auto")
    model.save_weights(tmp_path / "model.weights.h5")
    first = model.generate(prompts(model, 3, 5), 7, return_log_probs=1)[1]
    model.fit(random_ids(4, 7), random_ids(7, 4).T, verbose=0)
    fitted = check_is_seen(model, first)
    model.load_weights(tmp_path / "model.weights.h5")
    loaded = check_is_seen(model, fitted)
    for one, other in zip(first, loaded, strict=True):
        np.testing.assert_array_equal(one["chosen"], other["chosen"])

    attention = model.blocks[0].attention.query_key_value
    attention.enable_lora(2)
    attention.lora_kernel_b.assign(0.3 * np.random.default_rng(0).standard_normal(attention.lora_kernel_b.shape))
    adapted = check_is_seen(model, loaded)
    model.head.quantize("int8")
    check_is_seen(model, adapted)


def test_limit_of_decoding():
    def limit(**arguments):
        return LittleTransformer(num_layers=2, hidden_dim=8, num_heads=2, **arguments).decoding_limit

    assert limit(max_sequence_length=13) == limit(max_sequence_length=13, window_size=3) == 13
    assert limit(max_sequence_length=13, position="rotary") == limit(max_sequence_length=13, position=None) == 13
    # Two blocks of window w look 2 (w - 1) tokens back.
    assert limit(max_sequence_length=13, position="rotary", window_size=7) is None
    assert limit(max_sequence_length=12, position="rotary", window_size=7) == 12
    assert limit(max_sequence_length=None, position="rotary") is None


def test_bad_calls_of_the_protocol():
    model = small(num_layers=1)
    cache = model.build_cache(2, 5)
    with pytest.raises(ValueError, match=r"\(B, T\)"):
        model.call_with_cache(np.array([1, 2]), cache, 0)
    with pytest.raises(ValueError, match="lengths"):
        model.call_with_cache(np.array([[1, 2], [3, 4]]), cache, 0, lengths=np.array([1, 2, 2]))
    with pytest.raises(ValueError, match="The cache holds 5 positions"):
        model.call_with_cache(np.array([[1], [2]]), cache, 5)
    with pytest.raises(ValueError, match="vocabulary_size"):
        model.call_with_cache(np.array([[1], [23]]), cache, 0)
