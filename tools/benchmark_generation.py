"""Measure new tokens a second of greedy generation, against what a user would pick in place of keras_lt.

python tools/benchmark_generation.py      # an hour on two CPU cores
python tools/benchmark_generation.py --rounds 1 --columns "little B1" --only "keras_lt" "hand-written TF"
python tools/benchmark_generation.py --measure loss --rounds 1      # what int8 and bfloat16 weights cost

256 new tokens after prompts of 16 ids below 65, one prompt (B1) or 16 side by side (B16), untrained weights, float32
where nothing else is said; all have room for 512 tokens, so that nothing slides. A round is as many calls as take about
two seconds, prompts in and ids out; what is compiled was compiled in a call before.

The hand-written loops choose greedily in one compiled loop, with a cache of keys and values for each layer that is
written in place. They, keras_lt and "PyTorch, no cache", which reads the whole text for each token, have the same kind
of model. KerasHub and Hugging Face have GPT-2 with other sizes: biases in the attention, the embedding as head, and in
KerasHub GELU by tanh in all columns. "keras_lt, streamed" is `TextGenerator.stream`: text out, one prompt at a time.
Where greedy and sampled generation were measured, a second table says how many microseconds a token of a row took.

With `--measure loss` keras_lt trains on a text, one seed a round, and its loss on the last tenth of it, in nats a
token, is measured with the float32 weights and with int8 and bfloat16 ones made of them. Shakespeare where
`KERAS_LT_DATA` is set, else the text of Python's help.

Prints tables, then one JSON line.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import benchmarking
from benchmarking import Contender
from peers import (
    jax_decoding,
    keras_hub_decoding,
    sizes,
    tensorflow_decoding,
    tensorflow_gpt,
    torch_decoding,
    torch_gpt,
    transformers_decoding,
    weights,
)

PROMPT_LENGTH, NEW_TOKENS, MAX_LENGTH = 16, 256, 512
COLUMNS = [f"{size} B{batch_size}" for size in sizes.SIZES for batch_size in (1, 16)]
SAMPLED = ("keras_lt", "keras_lt, sampled", "keras_lt, sampled, top 10")
TRAINING_STEPS = {"little": 2000, "nanogpt-cpu": 1000, "baby": 100}


def add_settings(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--measure", choices=["speed", "loss"], default="speed", help="tokens a second, or the loss")
    default = ", ".join(f"{size} {steps}" for size, steps in TRAINING_STEPS.items())
    parser.add_argument("--steps", type=int, help=f"batches to train with before the loss (default: {default})")


def make_model(size: str, dtype: str | None = None):
    import keras_lt

    preset = getattr(keras_lt.models.presets, sizes.SIZES[size][0])
    return keras_lt.models.LittleTransformer(**{**preset, "max_sequence_length": MAX_LENGTH, "dtype": dtype})


def peer_arguments(size: str) -> dict:
    return {**sizes.model_arguments(size), "max_sequence_length": MAX_LENGTH}


def build_keras_lt(size: str, dtype: str | None = None, mode: str | None = None, **settings):
    import keras_lt

    model = make_model(size, dtype)
    if mode is not None:
        model.quantize(mode)
    if settings:
        settings = {"sampler": keras_lt.generation.Sampler(**settings), "seed": 0}
    return lambda token_ids: model.generate(token_ids, NEW_TOKENS, **settings)


def build_streamed(size: str):
    import keras_lt

    tokenizer = keras_lt.tokenizers.CharTokenizer("".join(map(chr, range(65, 130))))
    generator = keras_lt.TextGenerator(make_model(size), tokenizer)
    return lambda token_ids: list(generator.stream(tokenizer.decode(token_ids[0]), NEW_TOKENS))


def build_tensorflow(size: str):
    arguments = peer_arguments(size)
    variables = tensorflow_gpt.make_variables(weights.initial_weights(**arguments))
    heads, activation = arguments["num_heads"], arguments["activation"]
    return tensorflow_decoding.make_generate(variables, heads, activation, NEW_TOKENS)


def build_jax(size: str):
    arguments = peer_arguments(size)
    heads, activation = arguments["num_heads"], arguments["activation"]
    return jax_decoding.make_generate(weights.initial_weights(**arguments), heads, activation, NEW_TOKENS)


def build_keras_hub(size: str, **options):
    arguments = {name: value for name, value in peer_arguments(size).items() if name != "activation"}
    return keras_hub_decoding.make_generate(NEW_TOKENS, **arguments, **options)


def build_transformers(size: str):
    return transformers_decoding.make_generate(NEW_TOKENS, **peer_arguments(size))


def build_torch(size: str):
    arguments = peer_arguments(size)
    model = torch_gpt.make_model(weights.initial_weights(**arguments), **arguments)
    return torch_decoding.make_generate(model, NEW_TOKENS)


def make_contender(
    name: str, build: Callable, backend: str, *needs: str, columns: list[str] = COLUMNS, **settings
) -> Contender:
    """A contender; `build` takes the size and the settings, and returns a function of ids that generates."""

    def prepare(column: str, **_) -> Callable[[], float]:
        size, _, batch_size = column.partition(" B")
        token_ids = np.random.default_rng(0).integers(65, size=(int(batch_size), PROMPT_LENGTH)).astype("int32")
        generate = build(size, **settings)
        for _ in range(2):
            start = time.perf_counter()
            generate(token_ids)
        calls = max(1, round(2 / (time.perf_counter() - start)))

        def measure_round() -> float:
            start = time.perf_counter()
            for _ in range(calls):
                generate(token_ids)
            return calls * len(token_ids) * NEW_TOKENS / (time.perf_counter() - start)

        return measure_round

    return Contender(name, prepare, backend, needs, tuple(columns))


TENSORFLOW, JAX, TORCH = (("tensorflow", "tensorflow"), ("jax", "jax"), ("torch", "torch"))
CONTENDERS = [
    make_contender("keras_lt", build_keras_lt, *TENSORFLOW),
    make_contender("keras_lt (JAX)", build_keras_lt, *JAX),
    make_contender("keras_lt, streamed", build_streamed, *TENSORFLOW, columns=[c for c in COLUMNS if c.endswith("B1")]),
    make_contender("keras_lt, int8", build_keras_lt, *TENSORFLOW, mode="int8"),
    make_contender("keras_lt, bfloat16", build_keras_lt, *TENSORFLOW, dtype="bfloat16"),
    make_contender("keras_lt, sampled", build_keras_lt, *TENSORFLOW, temperature=0.8),
    make_contender("keras_lt, sampled, top 10", build_keras_lt, *TENSORFLOW, temperature=0.8, top_k=10),
    make_contender("hand-written TF", build_tensorflow, *TENSORFLOW),
    make_contender("hand-written JAX", build_jax, *JAX),
    make_contender("keras-hub, generate (JAX)", build_keras_hub, *JAX, "keras_hub"),
    make_contender("keras-hub, generate, jit", build_keras_hub, *TENSORFLOW, "keras_hub", jit_compile=True),
    make_contender("keras-hub, generate", build_keras_hub, *TENSORFLOW, "keras_hub"),
    make_contender("Hugging Face, generate", build_transformers, *TORCH, "transformers"),
    make_contender("PyTorch, no cache", build_torch, *TORCH),
]


def print_sampling(results: dict[str, dict[str, list[float]]]) -> None:
    """Print how many microseconds a token takes, chosen greedily and drawn, and how many more the drawing takes."""
    columns = [column for column, measured in results.items() if all(name in measured for name in SAMPLED)]
    if not columns:
        return
    print(f"\n{'microseconds a token':26}" + "".join(f"{column:>28}" for column in columns))
    for name in SAMPLED:
        cells = []
        for column in columns:
            greedy, own = (1e6 / statistics.median(results[column][key]) for key in (SAMPLED[0], name))
            cells.append(f"{own:16.2f} ({own - greedy:+9.2f})")
        print(f"{name:26}" + "".join(cells))


def measure_losses(arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """The loss of the same weights as float32, int8 and bfloat16, by size and name, one for each round."""
    import keras

    import keras_lt

    def evaluate(model) -> float:
        model.compile()
        return float(model.evaluate(validation, verbose=0, return_dict=True)["loss"])

    results = {}
    for size in dict.fromkeys(column.partition(" ")[0] for column in arguments.columns):
        preset = getattr(keras_lt.models.presets, sizes.SIZES[size][0])
        length, batch_size = preset["max_sequence_length"], sizes.SIZES[size][1]
        losses = results[size] = {"keras_lt": [], "keras_lt, int8": [], "keras_lt, bfloat16": []}
        for seed in range(arguments.rounds):
            keras.utils.set_random_seed(seed)
            training, validation = keras_lt.objectives.causal_windows(
                sizes.token_ids(), length, batch_size, validation_split=0.1, seed=seed
            )
            model = keras_lt.models.LittleTransformer(**preset)
            model.compile()
            model.fit(training.repeat().take(arguments.steps or TRAINING_STEPS[size]), shuffle=False, verbose=0)
            half = keras_lt.models.LittleTransformer(**preset, dtype="bfloat16")
            half.set_weights(model.get_weights())
            losses["keras_lt"].append(evaluate(model))
            losses["keras_lt, bfloat16"].append(evaluate(half))
            model.quantize("int8")
            losses["keras_lt, int8"].append(evaluate(model))
    return results


def main() -> None:
    arguments = benchmarking.parse_arguments(__doc__, COLUMNS, CONTENDERS, add_settings)
    if arguments.measure == "loss":
        print("loss on text that was not trained on, nats a token")
        benchmarking.print_table(measure_losses(arguments), "keras_lt", 4)
        return
    results = benchmarking.run(CONTENDERS, arguments)
    print_sampling(results)
    print("\nnew tokens a second")
    benchmarking.print_table(results, "keras_lt")


if __name__ == "__main__":
    main()
