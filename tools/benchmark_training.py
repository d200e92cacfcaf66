"""Measure tokens a second of training, against what a user would pick in place of keras_lt.

python tools/benchmark_training.py      # half an hour on two CPU cores
python tools/benchmark_training.py --rounds 3 --columns little --only "keras_lt, fit" "PyTorch, eager"
python tools/benchmark_training.py --measure loss --rounds 3      # do all learn alike?
python tools/benchmark_training.py --measure parameters --rounds 1

A round is one call of `fit`, or one run of the loop, over some hundred batches of random windows of a text (`--steps`),
its fixed cost included; what is compiled was compiled in a round before. All train the same kind of model in float32:
learned positions, pre-norm blocks, full causal attention, feed-forward networks four times as wide, cross-entropy of
all positions, no dropout. keras_lt is compiled with `compile()` and nothing else. Hand-written loops run 32 steps a
call on batches that lie in memory. Optimizers are what each library's users take: SmoothedRMS, which is S3's, in
keras_lt and the hand-written loops, Adam in KerasHub, fused AdamW in PyTorch.

FLOPs a token are 6 for each weight of a matrix and 12 T D for each layer's attention (T the context, D the width). The
matrix peak is the best product of two float32 matrices, by NumPy or TensorFlow, in the same rounds.

The machine must have nothing else to do: PyTorch's threads wait for each other without sleeping, so that another busy
process makes it ten times as slow, and the others half as fast.

Prints tables, then one JSON line.
"""

import importlib.util
import statistics
import time
from collections.abc import Callable

import benchmarking
from benchmarking import Contender
from peers import jax_gpt, keras_hub_gpt, sizes, tensorflow_gpt, torch_gpt, weights

STEPS_PER_CALL = 32
PEAK = "matrix peak"


def add_settings(parser) -> None:
    default = ", ".join(f"{size} {steps}" for size, (_, _, steps) in sizes.SIZES.items())
    parser.add_argument("--steps", type=benchmarking.positive, help=f"batches of a round (default: {default})")
    parser.add_argument(
        "--measure",
        choices=["speed", "loss", "parameters"],
        default="speed",
        help="tokens a second, the mean loss of each round from the first on, or the number of weights",
    )


def prepare_keras_lt(size: str, steps: int):
    import keras_lt

    preset, batch_size, _ = sizes.SIZES[size]
    model = keras_lt.models.LittleTransformer(**{**getattr(keras_lt.models.presets, preset), "dropout": 0.0})
    model.compile()
    windows = keras_lt.objectives.causal_windows(sizes.token_ids(), model.max_sequence_length, batch_size, seed=0)
    windows = windows.take(steps)
    return lambda: model.fit(windows, shuffle=False, verbose=0).history["loss"][0], model.count_params()


def prepare_keras_hub(size: str, steps: int, **options):
    model = keras_hub_gpt.compile_model(keras_hub_gpt.make_model(**sizes.model_arguments(size)), **options)
    x, y = (array.reshape(-1, array.shape[-1]) for array in sizes.training_windows(size, steps))
    batch_size = sizes.SIZES[size][1]
    return lambda: model.fit(x, y, batch_size, verbose=0).history["loss"][0], model.count_params()


def prepare_keras_hub_tuned(size: str, steps: int):
    return prepare_keras_hub(size, steps, jit_compile=True, steps_per_execution=min(STEPS_PER_CALL, steps))


def prepare_tensorflow(size: str, steps: int, jit_compile: bool = False):
    arguments, (x, y) = sizes.model_arguments(size), sizes.training_windows(size, steps)
    variables = tensorflow_gpt.make_variables(weights.initial_weights(**arguments))
    train = tensorflow_gpt.make_training(
        variables,
        arguments["num_heads"],
        arguments["activation"],
        jit_compile=jit_compile,
        steps_per_call=STEPS_PER_CALL,
    )
    return lambda: train(x, y), weights.count(weights.initial_weights(**arguments))


def prepare_tensorflow_xla(size: str, steps: int):
    return prepare_tensorflow(size, steps, jit_compile=True)


def prepare_jax(size: str, steps: int):
    arguments, (x, y) = sizes.model_arguments(size), sizes.training_windows(size, steps)
    held = weights.initial_weights(**arguments)
    train = jax_gpt.make_training(held, arguments["num_heads"], arguments["activation"], steps_per_call=STEPS_PER_CALL)
    return lambda: train(x, y), weights.count(held)


def prepare_torch(size: str, steps: int, compiled: bool = False):
    arguments, (x, y) = sizes.model_arguments(size), sizes.training_windows(size, steps)
    model = torch_gpt.make_model(weights.initial_weights(**arguments), **arguments)
    train = torch_gpt.make_training(model, compiled=compiled)
    return lambda: train(x, y), sum(parameter.numel() for parameter in model.parameters())


def prepare_torch_compiled(size: str, steps: int):
    return prepare_torch(size, steps, compiled=True)


def make_contender(name: str, build: Callable, backend: str, *needs: str) -> Contender:
    """A contender; `build` takes the size and the steps of a round, and returns what trains a round, and a count."""

    def prepare(size: str, steps: int | None, measure: str) -> Callable[[], float]:
        steps = steps or sizes.SIZES[size][2]
        train, parameters = build(size, steps)
        if measure != "speed":
            return train if measure == "loss" else lambda: parameters
        train()
        tokens = steps * sizes.SIZES[size][1] * sizes.model_arguments(size)["max_sequence_length"]

        def measure_round() -> float:
            start = time.perf_counter()
            train()
            return tokens / (time.perf_counter() - start)

        return measure_round

    return Contender(name, prepare, backend, needs)


def prepare_peak(size: str, steps: int | None, measure: str) -> Callable[[], float]:
    """Measures float32 operations a second: the best product of two matrices, by NumPy or TensorFlow if it is there."""
    has_tensorflow = importlib.util.find_spec("tensorflow") is not None

    def measure_round() -> float:
        return max(benchmarking.matrix_peak(), tensorflow_peak() if has_tensorflow else 0.0)

    return measure_round


def tensorflow_peak(size: int = 1024, repeats: int = 20) -> float:
    import tensorflow as tf

    a, b = tf.random.uniform((2, size, size))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        tf.matmul(a, b).numpy()
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)


CONTENDERS = [
    make_contender("keras_lt, fit", prepare_keras_lt, "tensorflow", "tensorflow"),
    make_contender("keras_lt, fit (JAX)", prepare_keras_lt, "jax", "jax"),
    make_contender("hand-written TF, XLA", prepare_tensorflow_xla, "tensorflow", "tensorflow"),
    make_contender("hand-written TF, no XLA", prepare_tensorflow, "tensorflow", "tensorflow"),
    make_contender("hand-written JAX", prepare_jax, "jax", "jax"),
    make_contender("keras-hub, fit", prepare_keras_hub, "tensorflow", "tensorflow", "keras_hub"),
    make_contender("keras-hub, fit, jit, 32 steps", prepare_keras_hub_tuned, "tensorflow", "tensorflow", "keras_hub"),
    make_contender("keras-hub, fit (JAX)", prepare_keras_hub, "jax", "jax", "keras_hub"),
    make_contender("PyTorch, eager", prepare_torch, "torch", "torch"),
    make_contender("PyTorch, torch.compile", prepare_torch_compiled, "torch", "torch"),
    Contender(PEAK, prepare_peak),
]


def print_shares(results, peak: float, flops: dict[str, int]) -> None:
    """Print the FLOPs of a token and, for each contender, how much of the peak it makes of them."""
    names = list(dict.fromkeys(name for measured in results.values() for name in measured))
    width = max(map(len, [*names, "share of the matrix peak"]))
    print(f"\n{'share of the matrix peak':{width}}  " + "  ".join(f"{size:>12}" for size in results))
    for name in names:
        cells = []
        for size, measured in results.items():
            share = statistics.median(measured[name]) * flops[size] / peak if name in measured else None
            cells.append(f"{'' if share is None else f'{share:.1%}':>12}")
        print(f"{name:{width}}  " + "  ".join(cells))
    print(f"{'MFLOPs a token':{width}}  " + "  ".join(f"{flops[size] / 1e6:12.3f}" for size in results))
    print(f"matrix peak: {peak / 1e9:.0f} GFLOP/s")


def main() -> None:
    arguments = benchmarking.parse_arguments(__doc__, list(sizes.SIZES), CONTENDERS, add_settings)
    is_speed = arguments.measure == "speed"
    if not is_speed:
        arguments.only = [name for name in arguments.only if name != PEAK]
    results = benchmarking.run(CONTENDERS, arguments)
    peaks = [max(measured.pop(PEAK)) for measured in results.values() if PEAK in measured]
    flops = {size: sizes.flops_per_token(**sizes.model_arguments(size)) for size in results}
    if peaks:
        print_shares(results, max(peaks), flops)
    print(f"\n{'tokens a second' if is_speed else arguments.measure}")
    facts = {"flops_per_token": flops, "matrix_peak": max(peaks, default=None)} if is_speed else {}
    benchmarking.print_table(results, "keras_lt, fit", 4 if arguments.measure == "loss" else 0, facts)


if __name__ == "__main__":
    main()
