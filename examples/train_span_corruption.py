"""Train a TransformerSeq2Seq to write what was taken out of a text, as T5 does, and hold it against counting.

Of 32 characters five are taken out, in two spans. Compared are these in the held-out text (the last tenth), each told
the true ones before it. `unigram` counts characters of the training text, `trigram` those after two others (Witten-Bell
interpolation); what comes after a gap only the model reads, and only it can mistake a character for the end of a span.

python examples/train_span_corruption.py    # Shakespeare or Python's help; three to four minutes on two CPU cores
"""

import argparse
import importlib.util
import pathlib
import re
import sys

MARKS, GAP, LENGTH = "\2\3①②", "[①②]", 32  # start, end and a sentinel for each span


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", help="UTF-8 text file (default: Shakespeare, or where it is not to be had the text of Python's help)")
    add("--steps", type=int, default=5000, help="batches of 64 windows (default: 5000)")
    add("--learning-rate", type=float, default=0.003, help="of SmoothedRMS, after the warm-up (default: 0.003)")
    add("--seed", type=int, default=0, help="seed of the weights and of the data (default: 0)")
    add("--output", type=pathlib.Path, default="runs/spans", help="directory to save in (default: runs/spans)")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, not {arguments.steps}")
    return arguments


def read_text(path):
    try:
        return keras_lt.datasets.tiny_shakespeare(path)
    except OSError as error:
        if path:
            sys.exit(str(error))
        print("Shakespeare is not to be had here (no file, no download): training on the text of Python's help.")
        return keras_lt.datasets.python_topics()


def count(ids, num_train, places, order, size):
    """Probabilities of what stands at some places, given the `order` ids before, from the first `num_train` ids."""
    before, probabilities = np.zeros(len(ids), "int64"), np.full((1, size), 1 / size)
    for length in range(order + 1):
        known, rows = np.unique(before[places], return_inverse=True)
        seen = np.flatnonzero(np.isin(before[:num_train], known))
        cells = np.searchsorted(known, before[seen]) * size + ids[seen]
        counts = np.bincount(cells, minlength=len(known) * size).reshape(-1, size)[rows]
        kinds = np.maximum((counts > 0).sum(axis=1, keepdims=True), 1)
        probabilities = (counts + kinds * probabilities) / (counts.sum(axis=1, keepdims=True) + kinds)
        before[length + 1 :] += size**length * ids[: -length - 1]
    return probabilities


def draw(steps, curves, path):
    from matplotlib.figure import Figure

    axes = Figure(figsize=(7, 4.5), layout="constrained").add_subplot()
    for name, bits in curves.items():
        axes.plot(steps, np.broadcast_to(bits, len(steps)), ".-", label=name)
    axes.set(xlabel="step", ylabel="bits per character taken out", title="Held-out text", ylim=(0, None))
    axes.legend()
    axes.figure.savefig(path, dpi=120)


def main(arguments):
    text, folder = read_text(arguments.data), arguments.output
    tokenizer = keras_lt.tokenizers.CharTokenizer.from_text(MARKS + text)
    ids, size, marks = tokenizer.encode(text), tokenizer.vocabulary_size, tokenizer.encode(MARKS)
    objective, options = keras_lt.objectives.span_corruption, {"validation_split": 0.1, "seed": arguments.seed}
    train, validation = objective(ids, LENGTH, 64, marks[2:], *marks[:2], **options)
    x, y, weights = keras.tree.map_structure(lambda *parts: np.concatenate(parts), *validation)
    taken = (weights > 0) & ~np.isin(y, marks)
    keras.utils.set_random_seed(arguments.seed)
    model = keras_lt.models.TransformerSeq2Seq(size, *marks[:2], LENGTH, 1, 8, 128)
    generator = keras_lt.TextGenerator(model, tokenizer)
    warmup = {"warmup_target": arguments.learning_rate, "warmup_steps": 0.05 * arguments.steps}
    rate = keras.optimizers.schedules.CosineDecay(0.0, 0.95 * arguments.steps, **warmup)
    model.compile(keras_lt.optimizers.SmoothedRMS(rate), weighted_metrics="auto")
    print(f"{model.count_params():,} parameters, {len(text):,} characters, {taken.sum():,} held-out ones taken out")
    epochs = max(number for number in range(1, 11) if arguments.steps % number == 0)
    fit = {"epochs": epochs, "steps_per_epoch": arguments.steps // epochs, "verbose": 1 if sys.stdout.isatty() else 2}
    log = model.fit(train.repeat(), validation_data=(x, y, taken.astype("float32")), shuffle=False, **fit).history
    generator.save(folder)
    num_train, fitted = int(len(ids) * 0.9), np.array(keras.ops.softmax(model.predict(x, verbose=0)))
    # The same spans, taken out of the numbers 4, 5, 6 ... in place of the text, tell where each character stood.
    _, numbers = objective(4 + np.arange(len(ids)), LENGTH, 64, [2, 3], 0, 1, **options)
    places, truth, bits = np.concatenate([batch[1] for batch in numbers])[taken] - 4, y[taken], {}
    for name, order in (("unigram", 0), ("trigram", 2), ("model", None)):
        guess = fitted[taken] if name == "model" else count(ids, num_train, places, order, size)
        bits[name], right = -np.log2(guess[np.arange(len(truth)), truth]).mean(), np.mean(guess.argmax(axis=1) == truth)
        print(f"{name:9}{bits[name]:.3f} bits per character taken out, {right:.2%} guessed right")
    steps = np.cumsum(epochs * [arguments.steps // epochs])
    draw(steps, {**bits, "model": np.log2(log["val_perplexity"])}, folder / "training.png")
    sources, answers = ([tokenizer.decode(row[:-1]) for row in rows] for rows in (x["source"], y))
    written = generator.generate([source + MARKS[1] for source in sources], y.shape[1])
    written, truth = ([(re.split(GAP, row) + 2 * [""])[1:3] for row in rows] for rows in (written, answers))
    print(f"model    {np.equal(written, truth).mean():.2%} of {2 * len(y):,} spans written exactly as they were")
    print(f"saved {folder}, drawn {folder}/training.png\n")
    for row in range(0, len(y), 1 + len(y) // 3):
        for name, spans in (("written", iter(written[row])), ("truth", iter(truth[row]))):
            line = re.sub(GAP, lambda _, spans=spans: f"[{next(spans)}]", sources[row])
            print(f"{name:9}{line}".replace("\n", "↵"))


if __name__ == "__main__":
    arguments = parse_arguments()
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit('The picture needs matplotlib: pip install "keras_lt[plots]"')
    # Here, not above, so that --help answers at once.
    import keras
    import numpy as np

    import keras_lt

    main(arguments)
