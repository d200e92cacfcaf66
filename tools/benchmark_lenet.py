"""Measure images a second of training LeNet-5, against what a user would pick in place of keras_lt.

python tools/benchmark_lenet.py      # two minutes on two CPU cores
python tools/benchmark_lenet.py --rounds 2 --only "keras_lt, fit" "PyTorch, eager"
python tools/benchmark_lenet.py --measure loss --rounds 3      # do all learn alike?

A round is one epoch over 28 x 28 images that lie in memory as arrays (`--images`), in a random order and batches of
128: one call of `fit`, its fixed cost included, or a loop. What is compiled was compiled in an epoch before. All train
LeNet-5 in float32: two convolutions of 6 and 16 channels, dense layers of 120, 84 and 10 units (44,426 weights). The
images are noise whose brightness tells the class. keras_lt is compiled with `compile()` and nothing else, Keras with
Adam and cross-entropy, both with accuracy, PyTorch with fused AdamW.

The machine must have nothing else to do, as in benchmark_training.py. Prints a table, then one JSON line.
"""

import time
from collections.abc import Callable

import numpy as np

import benchmarking
from benchmarking import Contender
from peers import keras_lenet, torch_lenet

BATCH_SIZE = 128


def add_settings(parser) -> None:
    parser.add_argument("--images", type=benchmarking.positive, default=25_600, help="of an epoch (default: 25600)")
    parser.add_argument(
        "--measure",
        choices=["speed", "loss"],
        default="speed",
        help="images a second, or the mean loss of each epoch from the first on",
    )


def make_images(number: int) -> tuple[np.ndarray, np.ndarray]:
    """Images, `(number, 28, 28, 1)`, and labels below 10."""
    generator = np.random.default_rng(0)
    labels = generator.integers(10, size=number, dtype="int32")
    images = generator.random((number, 28, 28, 1), dtype="float32")
    return images * (1 + labels[:, None, None, None].astype("float32")) / 10, labels


def fit(model) -> Callable[[np.ndarray, np.ndarray], float]:
    return lambda images, labels: model.fit(images, labels, BATCH_SIZE, verbose=0).history["loss"][0]


def prepare_keras_lt():
    import keras_lt

    model = keras_lt.models.LeNet(hidden_units=(120, 84), image_shape=(28, 28, 1))
    model.compile()
    return fit(model)


def prepare_keras(**options):
    model = keras_lenet.make_model()
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"], **options)
    return fit(model)


def prepare_keras_grouped():
    return prepare_keras(steps_per_execution=32)


def prepare_torch(channels_last: bool = False):
    train = torch_lenet.make_training(torch_lenet.make_model(), channels_last)
    return lambda images, labels: train(images, labels, BATCH_SIZE)


def prepare_torch_channels_last():
    return prepare_torch(channels_last=True)


def make_contender(name: str, build: Callable, backend: str) -> Contender:
    """A contender; `build` returns what trains an epoch on images and labels and returns the mean loss."""

    def prepare(column: str, images: int, measure: str) -> Callable[[], float]:
        arrays, train = make_images(images), build()
        if measure == "loss":
            return lambda: train(*arrays)
        train(*arrays)

        def measure_round() -> float:
            start = time.perf_counter()
            train(*arrays)
            return images / (time.perf_counter() - start)

        return measure_round

    return Contender(name, prepare, backend, (backend,))


CONTENDERS = [
    make_contender("keras_lt, fit", prepare_keras_lt, "tensorflow"),
    make_contender("keras_lt, fit (JAX)", prepare_keras_lt, "jax"),
    make_contender("PyTorch, eager", prepare_torch, "torch"),
    make_contender("PyTorch, channels last", prepare_torch_channels_last, "torch"),
    make_contender("Keras, fit", prepare_keras, "tensorflow"),
    make_contender("Keras, fit, 32 steps", prepare_keras_grouped, "tensorflow"),
]


def main() -> None:
    arguments = benchmarking.parse_arguments(__doc__, ["LeNet-5"], CONTENDERS, add_settings)
    results = benchmarking.run(CONTENDERS, arguments)
    is_speed = arguments.measure == "speed"
    print(f"\n{'images a second' if is_speed else 'loss'}")
    benchmarking.print_table(results, "keras_lt, fit", 0 if is_speed else 4)


if __name__ == "__main__":
    main()
