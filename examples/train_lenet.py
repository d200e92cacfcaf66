"""Train LeNet on handwritten digits: scikit-learn's, which need no download, or MNIST.

python examples/train_lenet.py                        # 1,438 digits, seconds
python examples/train_lenet.py --data mnist           # 60,000, a minute or two on two CPU cores
python examples/train_lenet.py --data my_images.npz   # x_train ... y_test: uint8 (N, height, width), integers

Prints the accuracy on the test images, draws the confusion matrix and digits that were misread, and saves the model, as
`model.keras` and as a SavedModel that takes image files. Source: S1, "LeNet".
"""

import argparse
import importlib.util
import math
import pathlib
import sys


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", default="digits", help="digits, mnist, or a file of NumPy arrays (default: digits)")
    add("--epochs", type=int, help="(default: 5; digits: 40)")
    add("--batch-size", type=int, help="images a batch (default: 64; digits: 32)")
    add("--optimizer", default="SmoothedRMS", help="SmoothedRMS, or a class of keras.optimizers such as Adam")
    add("--learning-rate", type=float, default=0.003, help="its highest: warm-up, then cosine decay (default: 0.003)")
    add("--filters", type=int, nargs="+", default=[6, 16], help="of the convolutions (default: 6 16)")
    add("--hidden-units", type=int, nargs="+", default=[120, 84], help="widths of the dense layers (default: 120 84)")
    add("--limit", type=int, help="take only so many training images")
    add("--seed", type=int, default=0, help="seed of the weights and of the order of the images (default: 0)")
    add("--output", help="directory to write to (default: runs/lenet-DATA)")
    arguments = parser.parse_args()
    if any(value is not None and value < 1 for value in (arguments.epochs, arguments.batch_size, arguments.limit)):
        parser.error("--epochs, --batch-size and --limit must be at least 1")
    if not 0 < arguments.learning_rate < math.inf:
        parser.error(f"--learning-rate must be above 0, not {arguments.learning_rate}")
    name = pathlib.Path(arguments.data).stem
    arguments.output = pathlib.Path(arguments.output or f"runs/lenet-{name}")
    arguments.epochs = arguments.epochs or (40 if arguments.data == "digits" else 5)
    arguments.batch_size = arguments.batch_size or (32 if arguments.data == "digits" else 64)
    return arguments


def make_model(arguments, images, num_classes):
    keras.utils.set_random_seed(arguments.seed)
    sizes = {"filters": arguments.filters, "hidden_units": arguments.hidden_units}
    model = keras_lt.models.LeNet(num_classes, **sizes, image_shape=images.shape[1:])
    model.summary(line_length=80)
    steps = arguments.epochs * math.ceil(len(images) / arguments.batch_size)
    warmup, cosine = min(100, steps // 10), keras.optimizers.schedules.CosineDecay
    rate = cosine(0.0, max(1, steps - warmup), warmup_target=arguments.learning_rate, warmup_steps=warmup)
    package = keras_lt.optimizers if arguments.optimizer == "SmoothedRMS" else keras.optimizers
    model.compile(getattr(package, arguments.optimizer)(rate))
    return model


def draw_confusion(labels, found, path):
    from matplotlib.figure import Figure
    from sklearn.metrics import ConfusionMatrixDisplay

    axes = Figure(figsize=(6, 5.5), layout="constrained").add_subplot()
    ConfusionMatrixDisplay.from_predictions(labels, found, ax=axes, cmap="Blues", colorbar=False)
    axes.set(title="Test images: what they are, what LeNet reads")
    axes.figure.savefig(path, dpi=120)


def draw_misread(images, labels, probabilities, path, most=18, columns=6):
    """The misread images of which the model was surest."""
    from matplotlib.figure import Figure

    found = probabilities.argmax(axis=1)
    wrong = np.flatnonzero(found != labels)
    wrong = wrong[np.argsort(-probabilities[wrong, found[wrong]])][:most]
    rows = max(1, math.ceil(len(wrong) / columns))
    figure = Figure(figsize=(1.4 * columns, 1.7 * rows), layout="constrained")
    for place, axes in enumerate(figure.subplots(rows, columns, squeeze=False).flat):
        axes.axis("off")
        if place < len(wrong):
            number = wrong[place]
            axes.imshow(images[number, :, :, 0], cmap="gray_r")
            axes.set_title(f"{labels[number]} read as {found[number]}\n({probabilities[number].max():.0%})", fontsize=9)
    figure.savefig(path, dpi=120)


def main(arguments):
    path = None if arguments.data == "mnist" else arguments.data
    try:
        arguments.output.mkdir(parents=True, exist_ok=True)
        data = keras_lt.datasets.digits() if path == "digits" else keras_lt.datasets.mnist(path)
        (x_train, y_train), (x_test, y_test) = data
        x_train, y_train = x_train[: arguments.limit], y_train[: arguments.limit]
        model = make_model(arguments, x_train, int(max(y_train.max(), y_test.max())) + 1)
    except (OSError, ValueError, AttributeError) as error:
        sys.exit(str(error))
    print(f"{len(x_train):,} images of {x_train.shape[1]} x {x_train.shape[2]} to train with, {len(x_test):,} to test")
    model.fit(x_train, y_train, arguments.batch_size, arguments.epochs, verbose=1 if sys.stdout.isatty() else 2)
    if not all(np.isfinite(weight).all() for weight in model.get_weights()):
        sys.exit("The weights are no longer numbers, nothing is saved: try a lower --learning-rate.")
    model.save(arguments.output / "model.keras")
    probabilities = model.predict(x_test, batch_size=256, verbose=0)
    right = int((probabilities.argmax(axis=1) == y_test).sum())
    print(f"test accuracy {right / len(y_test):.2%}: {len(y_test) - right} of {len(y_test):,} misread")
    draw_confusion(y_test, probabilities.argmax(axis=1), arguments.output / "confusion.png")
    draw_misread(x_test, y_test, probabilities, arguments.output / "misread.png")
    print(f"saved {arguments.output}/model.keras, drawn {arguments.output}/confusion.png and misread.png")
    if keras.config.backend() != "torch":
        print(f"exported {keras_lt.serving.export_saved_model(model, arguments.output / 'served')}")


if __name__ == "__main__":
    arguments = parse_arguments()
    if not all(map(importlib.util.find_spec, ("matplotlib", "sklearn"))):
        sys.exit('The pictures need matplotlib and scikit-learn: pip install "keras_lt[digits, plots]"')
    # Here, not above, so that --help answers at once.
    import keras
    import numpy as np

    import keras_lt

    main(arguments)
