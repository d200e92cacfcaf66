"""TransformerSeq2Seq against NumPy written from S3 and S1 and against PyTorch; decoding, padding, files, training."""

import keras
import numpy as np
import pytest

from keras_lt import TextGenerator
from keras_lt.generation import Sampler
from keras_lt.layers import CrossAttention, TransformerBlock
from keras_lt.models import TransformerSeq2Seq, presets
from model_equations import blocks, causal, embed, head
from model_testing import (
    FAST_MODE,
    MARKS,
    OPTIONS,
    check_cache,
    check_generation,
    check_reload,
    exported,
    log_softmax,
    random_ids,
    small,
    uncached_logits,
    without_initializers,
)
from seq2seq_testing import (
    LETTERS,
    REVERSING,
    check_answers,
    check_padding,
    check_prompts_without_padding,
    check_reverses,
    check_score,
    check_wrong_inputs,
    check_wrong_marks,
    check_wrong_prompts,
    reversed_strings,
    rows_of,
)
from testing import BACKEND, MODES, assert_close, needs_tensorflow, needs_torch, run, to_numpy, weight_gradient

# XLA takes longer to compile a training step than these tests to run it.
JIT = False if BACKEND == "tensorflow" else "auto"
NAMED_TENSOR = {name: value for name, value in presets.NAMED_TENSOR.items() if type(value) is not int}
OWN_OPTIONS = {name: value for name, value in OPTIONS.items() if name != "window_size"}
OWN_OPTIONS |= {"position": "sinusoidal", "start_token_id": 4, "end_token_id": 5}
# Every option is in one of these, but for those that only decide how weights are drawn.
FORMS = {
    "default": (),
    "sizes_and_parts": (
        *("vocabulary_size", "num_heads", "hidden_dim", "head_dim", "intermediate_dim", "num_layers"),
        *("num_key_value_heads", "attention_bias", "activation", "gated", "feed_forward_bias"),
        *("layer_norm_epsilon", "dropout"),
    ),
    "named_tensor": ("norm_first", "position", "scale_embeddings", "tie_embeddings"),
    "mask_zero": ("mask_zero", "max_sequence_length"),
    "no_limit": {"position": None, "max_sequence_length": None},
}
WEIGHTS_ONLY = {"embeddings_initializer", "kernel_initializer", "bias_initializer", "seed", *MARKS}


def arguments(form):
    options = FORMS[form]
    return options if isinstance(options, dict) else {name: OWN_OPTIONS[name] for name in options}


def seq2seq(**arguments):
    return small(TransformerSeq2Seq, **arguments)


@pytest.fixture(scope="module")
def models():
    """In S3's form and in S1's, of two blocks, for tests that change nothing."""
    return {"s3": seq2seq(), "s1": seq2seq(**NAMED_TENSOR)}


@pytest.fixture(scope="module")
def one_block():
    return seq2seq(num_layers=1, mask_zero=True)


@pytest.fixture(scope="module", params=FORMS)
def form(request):
    return seq2seq(**{"num_layers": 1, **arguments(request.param)})


def pair(num_rows=3, source_length=8, target_length=5):
    ids = random_ids(num_rows, source_length + target_length)
    return {"source": ids[:, :source_length], "target": ids[:, source_length:]}


def forward(model, source, target):
    """The logits of one target, and what each block looked at, in float64."""
    encoded, (encoder,) = blocks(embed(model.embedding, source), model.encoder_blocks, model.encoder_norm)
    after = {"blocked": causal(len(target)), "encoded": encoded}
    x, (decoder, cross) = blocks(embed(model.embedding, target), model.decoder_blocks, model.decoder_norm, **after)
    return head(x, model), {"encoder": encoder, "decoder": decoder, "cross": cross}


# The equations


@pytest.mark.parametrize("form", ["s3", "s1"])
def test_equals_the_equations(models, form):
    """Logits, features, and what each block looked at, each row of which sums to 1."""
    model, inputs = models[form], pair()

    def call(inputs):
        return model(inputs, return_attention_scores=True), model(inputs, return_features=True)

    rows = [forward(model, *row) for row in zip(inputs["source"], inputs["target"], strict=True)]
    for mode in MODES if form == "s3" else [FAST_MODE]:
        (logits, scores), features = run(mode, call, inputs)
        assert_close(logits, np.stack([row for row, _ in rows]), 1e-5)
        assert_close(head(features.astype("float64"), model), logits, 1e-5)
        assert set(scores) == {"encoder", "decoder", "cross"}
        for kind, of_blocks in scores.items():
            assert len(of_blocks) == 2
            for number, found in enumerate(of_blocks):
                assert_close(found, np.stack([weights[kind][number] for _, weights in rows]), 1e-5)
                assert_close(found.sum(-1), np.ones(found.shape[:-1]))


def torch_attention(module, layer):
    """Give PyTorch's attention the kernels of ours, which has no biases."""
    import torch

    kernels = [to_numpy(kernel) for kernel in (layer.query_kernel, layer.key_kernel, layer.value_kernel)]
    stacked = np.concatenate([kernel.transpose(0, 2, 1).reshape(-1, kernel.shape[1]) for kernel in kernels])
    output = to_numpy(layer.output_kernel)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.tensor(stacked))
        module.out_proj.weight.copy_(torch.tensor(output.reshape(-1, output.shape[-1]).T))
        module.in_proj_bias.zero_()
        module.out_proj.bias.zero_()


def torch_copy(module, *weights):
    import torch

    with torch.no_grad():
        for parameter, weight in zip((module.weight, module.bias), weights, strict=True):
            parameter.copy_(torch.tensor(np.ascontiguousarray(to_numpy(weight).T)))


def torch_block(block, kind):
    """A block of PyTorch's with the weights of ours."""
    width, hidden = block.feed_forward.intermediate.kernel.shape
    module = kind(width, 3, hidden, 0.0, batch_first=True, norm_first=block.norm_first)
    torch_attention(module.self_attn, block.attention)
    norms = [block.attention_norm, block.feed_forward_norm]
    if block.cross_attention is not None:
        torch_attention(module.multihead_attn, block.cross_attention)
        norms.insert(1, block.cross_attention_norm)
    for number, norm in enumerate(norms, 1):
        torch_copy(getattr(module, f"norm{number}"), norm.gamma, norm.beta)
    first, second = block.feed_forward.intermediate, block.feed_forward.output_projection
    torch_copy(module.linear1, first.kernel, first.bias)
    torch_copy(module.linear2, second.kernel, second.bias)
    return module


@needs_torch
@pytest.mark.parametrize("form", ["s3", "s1"])
def test_equals_pytorch(models, form):
    """Its blocks with the same weights, padding of the source included."""
    import torch

    model, inputs = models[form], pair()
    mask = np.arange(8) < np.array([[8], [5], [1]])

    def embedded(ids):
        return torch.tensor(np.stack([embed(model.embedding, row) for row in ids]), dtype=torch.float32)

    def norm(layer, x):
        if layer is None:
            return x
        module = torch.nn.LayerNorm(12)
        torch_copy(module, layer.gamma, layer.beta)
        return module(x)

    with torch.no_grad():
        hidden, x = torch.tensor(~mask), embedded(inputs["source"])
        for block in model.encoder_blocks:
            x = torch_block(block, torch.nn.TransformerEncoderLayer)(x, src_key_padding_mask=hidden)
        memory, x = norm(model.encoder_norm, x), embedded(inputs["target"])
        arguments = {"tgt_mask": torch.ones(5, 5, dtype=torch.bool).triu(1), "memory_key_padding_mask": hidden}
        for block in model.decoder_blocks:
            x = torch_block(block, torch.nn.TransformerDecoderLayer)(x, memory, **arguments)
        x = norm(model.decoder_norm, x).numpy()
    assert_close(run(FAST_MODE, model, {**inputs, "source_padding_mask": mask}), head(x, model), 2e-5)


def test_number_of_parameters():
    norm, attention, feed_forward = 2 * 32, 4 * 32 * 32, 2 * 32 * 128 + 128 + 32
    encoder_block, decoder_block = attention + feed_forward + 2 * norm, 2 * attention + feed_forward + 3 * norm
    ends = 30 * 32 + 64 * 32 + 2 * norm + 32 * 30 + 30
    model = TransformerSeq2Seq(vocabulary_size=30, start_token_id=28, end_token_id=29)
    assert model.count_params() == ends + 2 * (encoder_block + decoder_block)


def test_every_weight_is_its_own():
    """A seeded initializer starts no two kernels of one shape with the same numbers."""
    model = TransformerSeq2Seq(23, 1, 2, 13, 1, 2, 8, kernel_initializer=keras.initializers.RandomNormal(seed=3))
    kernels = [to_numpy(weight) for weight in model.weights if "kernel" in weight.path]
    assert len(kernels) > 9
    for number, kernel in enumerate(kernels):
        for other in kernels[number + 1 :]:
            assert kernel.shape != other.shape or np.abs(kernel - other).max() > 0.01


# Decoding


def test_every_option_is_in_a_form():
    assert {name for form in FORMS for name in arguments(form)} | WEIGHTS_ONLY == set(OWN_OPTIONS)


def test_generation_equals_plain_calls(form):
    """Sources and prompts of unequal lengths: one stays within the context, one outgrows it, one begins beyond."""
    sources, prompts = rows_of(form, 5, 13, 1), rows_of(form, 1, 8, 15)
    check_generation(form, prompts, max_new_tokens=7, sources=sources)


def test_cached_equals_uncached(form):
    """On TensorFlow eagerly: `generate` compiles the same with XLA."""
    ids = random_ids(5, 11, vocabulary_size=form.vocabulary_size)
    check_cache(FAST_MODE, form, ids, source=random_ids(5, 7, vocabulary_size=form.vocabulary_size))


def test_answers(one_block, monkeypatch):
    check_answers(one_block, rows_of(one_block, 5, 13, 1), monkeypatch)


def test_samples_past_the_context(one_block):
    """The window slides beside each sample's own source."""
    sources, settings = rows_of(one_block, 5, 13), {"num_samples": 2, "stop_token_ids": [], "return_log_probs": 1}
    rows, log_probs = one_block.generate({"source": sources}, 15, Sampler(), seed=3, **settings)
    for number, (row, found) in enumerate(zip(rows, log_probs, strict=True)):
        inputs = np.array([MARKS["start_token_id"], *row[:-1]], "int32")
        expected = log_softmax(uncached_logits(one_block, inputs, sources[number // 2]))
        assert_close(found["chosen"], expected[range(15), row], 1e-5)


def test_score(one_block):
    """One target longer than the context, and one of which nothing counts."""
    check_score(one_block, rows_of(one_block, 5, 13, 1), rows_of(one_block, 16, 4, 1))


def test_padding_in_prompts(one_block):
    check_prompts_without_padding(one_block, rows_of(one_block, 5, 13, 1))


def test_source_is_read_once(models, monkeypatch):
    """`build_cache` runs the encoder and makes keys and values of what comes out; no token makes them again."""
    model, ran = models["s3"], []
    for kind, name in ((CrossAttention, "build_cache"), (TransformerBlock, "call")):
        original = getattr(kind, name)

        def counted(layer, *args, original=original, **kwargs):
            ran.append(layer.path if hasattr(layer, "path") else layer.name)
            return original(layer, *args, **kwargs)

        monkeypatch.setattr(kind, name, counted)
    cache = model.build_cache(2, 5, source=random_ids(2, 7))
    # Each block of the encoder runs, with keys of its own; each of the decoder makes its keys.
    assert len(ran) == 2 * 2 + 2
    ran.clear()
    for start in range(3):
        _, cache = model.call_with_cache(random_ids(2, 1), cache, start)
    assert len(ran) == 3 * 2 and not any("encoder" in name or "attention" in name for name in ran)


# Padding and wrong inputs


@pytest.mark.parametrize("form", ["s3", "s1"])
def test_padding_changes_nothing(models, form):
    zero = seq2seq(mask_zero=True, **(NAMED_TENSOR if form == "s1" else {}))
    check_padding(models[form], zero, ["right", "left", "inside"])


def test_padding_is_not_looked_at(models):
    inputs, mask = pair(), np.arange(8) < np.array([[8], [5], [1]])
    call = {**inputs, "source_padding_mask": mask}
    _, scores = run(FAST_MODE, lambda inputs: models["s3"](inputs, return_attention_scores=True), call)
    for kind in ("encoder", "cross"):
        for found in scores[kind]:
            assert not (found * ~mask[:, None, None]).any()
            assert_close(found.sum(-1), np.ones(found.shape[:-1]))
    for found in scores["decoder"]:
        assert not np.triu(found, 1).any()


def test_wrong_inputs(models):
    check_wrong_inputs(models["s3"])
    for name in ("source", "target"):
        with pytest.raises(ValueError, match="13.*14"):
            models["s3"]({**pair(), name: random_ids(3, 14)})


def test_wrong_prompts(models):
    check_wrong_prompts(models["s3"])
    for call in (models["s3"].generate, lambda inputs, _: models["s3"].score({**inputs, "target": [[9, 1]] * 2})):
        with pytest.raises(ValueError, match="A source may have at most 13 tokens .* Received: source 1 of 14"):
            call({"source": [[1], [2] * 14]}, 3)


def test_wrong_arguments():
    check_wrong_marks(TransformerSeq2Seq)
    for wrong in ({"position": "rotary"}, {"num_layers": 0}, {"dropout": 1.0}, {"num_heads": 5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            seq2seq(**wrong)


def test_shapes(models):
    model = models["s3"]
    for num_rows, source_length, length in ((1, 1, 1), (0, 7, 5), (2, 3, 0), (2, 0, 3)):
        logits = run(FAST_MODE, model, pair(num_rows, source_length, length))
        assert logits.shape == (num_rows, length, 23)
    assert model.predict(pair(7), batch_size=3, verbose=0).shape == (7, 5, 23)
    symbolic = {name: keras.Input((length,), dtype="int32") for name, length in (("source", 8), ("target", None))}
    outputs, scores = model(symbolic, return_attention_scores=True)
    assert outputs.shape == (None, None, 23) and model(symbolic, return_features=True).shape == (None, None, 12)
    shapes = {kind: [score.shape for score in of_blocks] for kind, of_blocks in scores.items()}
    assert shapes == {
        "encoder": [(None, 3, 8, 8)] * 2,
        "decoder": [(None, 3, None, None)] * 2,
        "cross": [(None, 3, None, 8)] * 2,
    }
    assert model.compute_output_shape({"source": (3, 8), "target": (3, 5)}) == (3, 5, 23)


# Files, policies, formats


def test_config_holds_every_option():
    with without_initializers():
        default = TransformerSeq2Seq(23, 1, 2).get_config()
        config = TransformerSeq2Seq(**OWN_OPTIONS).get_config()
        again = TransformerSeq2Seq.from_config(config).get_config()
    assert set(OWN_OPTIONS) == set(default) - {"name", "trainable", "dtype"} and again == config
    for name in OWN_OPTIONS:
        assert config[name] != default[name], name


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_saves_and_loads_in_a_fresh_process(tmp_path):
    options = {name: value for name, value in OWN_OPTIONS.items() if not name.endswith("initializer")}
    models = {"options": seq2seq(**options, dtype="mixed_bfloat16" if BACKEND == "tensorflow" else None)}
    if BACKEND == "tensorflow":  # seconds a model elsewhere
        models["int8"] = seq2seq(num_layers=1)
        models["int8"].quantize("int8")
    inputs = pair()
    inputs["source"][1, 5:] = inputs["target"][2, 3:] = 0
    generator = TextGenerator(seq2seq(num_layers=1, mask_zero=True, **REVERSING), LETTERS)
    check_reload(tmp_path, models, inputs, generator, ["abc", "hgfedcba"])


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_is_near(models, policy):
    """The whole and in pieces; what the decoding keeps is in half precision, too."""
    model, inputs = seq2seq(dtype=policy), pair()
    exact = np.stack([forward(models["s3"], *row)[0] for row in zip(*inputs.values(), strict=True)])

    def call(inputs):
        cache = model.build_cache(3, 5, source=inputs["source"])
        first, after = model.call_with_cache(inputs["target"][:, :3], cache, 0)
        return cache, model(inputs), [first, model.call_with_cache(inputs["target"][:, 3:], after, 3)[0]]

    cache, whole, pieces = run(FAST_MODE, call, inputs)
    assert {x.dtype.name for x in keras.tree.flatten(cache)} == {policy.removeprefix("mixed_")}
    # 11 and 8 bits of mantissa, and four blocks add up their roundings.
    tolerance = (0.01 if policy == "mixed_float16" else 0.08) * np.linalg.norm(exact)
    assert 0 < np.linalg.norm(whole.astype("float64") - exact) < tolerance
    assert np.linalg.norm(np.concatenate(pieces, axis=1).astype("float64") - exact) < tolerance


@needs_tensorflow
@pytest.mark.parametrize("name", ["tf_saved_model", "onnx", "openvino", "litert"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_exports(models, name, tmp_path):
    """With two named inputs, for other batch sizes and lengths than any that the export saw, which saw none."""
    model = models["s1"]
    logits = exported(model, name, tmp_path)
    for shape in ((1, 1, 1), (7, 13, 2), (2, 5, 11)):
        inputs = pair(*shape)
        assert_close(logits(**inputs), to_numpy(model(inputs)), 1e-5)


# Training


def test_reverses_strings():
    keras.utils.set_random_seed(0)
    model = TransformerSeq2Seq(**REVERSING, max_sequence_length=8, num_layers=1, num_heads=2, hidden_dim=32)
    check_reverses(model, epochs=25, jit_compile=JIT)


@needs_tensorflow
def test_every_kind_of_data_trains_the_same():
    """Compiled by XLA or not, from arrays or from tf.data with the mask of the target as weights, or by `mask_zero`."""
    import tensorflow as tf

    source, target, y = reversed_strings(12)
    source, target, y = (np.pad(ids, ((0, 0), (0, 2))) for ids in (source, target, y))
    source[::2, 3:] = target[::3, 3:] = y[::3, 3:] = 0
    inputs = {"source": source, "target": target}
    masked = {**inputs, "source_padding_mask": source != 0}
    weights = (y != 0).astype("float32")
    kinds = {
        "mask_zero": (True, True, (inputs, y)),
        "no_xla": (True, False, (inputs, y)),
        "arrays": (False, False, (masked, y, weights)),
        "tf.data": (False, False, (tf.data.Dataset.from_tensor_slices((masked, y, weights)).batch(4),)),
    }
    found = {}
    for kind, (mask_zero, jit_compile, (x, *more)) in kinds.items():
        model = seq2seq(num_layers=1, mask_zero=mask_zero)
        model.compile(keras.optimizers.SGD(0.3), weighted_metrics="auto", jit_compile=jit_compile)
        arguments = dict(zip(("y", "sample_weight"), more, strict=False))
        history = model.fit(x, **arguments, batch_size=4 if more else None, shuffle=False, epochs=2, verbose=0).history
        found[kind] = history["perplexity"], model.get_weights()
        assert history["perplexity"][1] < history["perplexity"][0]
    for kind, values in found.items():
        # The epoch's loss weights batches by rows, which sample weights change; what is exact is the perplexity.
        assert_close(values, found["no_xla"], 1e-4), kind


def test_gradient_reaches_all_weights_and_not_what_is_padded(one_block):
    inputs = pair()
    inputs["source"][:, 6:] = 0
    gradients = weight_gradient(FAST_MODE, one_block, lambda inputs: one_block(inputs) ** 2, inputs)
    for weight, values in zip(one_block.trainable_variables, gradients, strict=True):
        assert np.isfinite(values).all() and np.abs(values).max() > 0, weight.path
    positions = next(
        values
        for weight, values in zip(one_block.trainable_variables, gradients, strict=True)
        if "position" in weight.path
    )
    assert not positions[6:].any() and positions[:6].any(axis=1).all()


def test_dropout_acts_in_training_only_and_by_its_seed(models):
    one, other, different = (seq2seq(dropout=0.5, seed=seed) for seed in (1, 1, 2))

    def both(inputs):
        return [model(inputs, training=True) for model in (one, other, different)], one(inputs)

    (first, again, third), plain = run(FAST_MODE, both, pair())
    assert_close(plain, run(FAST_MODE, models["s3"], pair()))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - third).max() > 0.1 and np.abs(first - plain).max() > 0.1
    seeds = [layer.seed for layer in one._flatten_layers() if isinstance(layer, keras.layers.Dropout)]
    assert len(seeds) == len(set(seeds))


def test_features_in_another_model(one_block):
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in ("source", "target")}
    outer = keras.Model(inputs, keras.layers.Dense(2)(one_block(inputs, return_features=True)))
    x = pair()
    features = run(FAST_MODE, lambda x: one_block(x, return_features=True), x)
    expected = features @ to_numpy(outer.layers[-1].kernel) + to_numpy(outer.layers[-1].bias)
    assert_close(outer.predict(x, verbose=0), expected, 1e-5)
