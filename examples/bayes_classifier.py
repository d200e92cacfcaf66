"""Who wrote this line? Bayes' rule, with a small language model of each author as likelihood P(line | author).

Lines that were held out tell how often the posterior is right, and how sure it is. Character trigrams do so, too.

python examples/bayes_classifier.py [--texts A.txt B.txt ...]     # by default four modules of Python's own library
python examples/bayes_classifier.py --classify "self.left(90)"    # by the models that were trained last
"""

import argparse
import collections
import importlib.util
import itertools
import json
import pathlib
import sys

MODULES = ("argparse", "doctest", "_pydecimal", "turtle")
SHORTEST, LONGEST, BINS = 10, 78, 10  # characters: shorter lines are left out, longer ones cut


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--texts", nargs="+", type=pathlib.Path, help="UTF-8 files, one an author (default: modules of Python)")
    add("--steps", type=int, default=2000, help="batches of all texts; a tenth of them of each alone (default: 2000)")
    add("--classify", metavar="LINE", help="print the posterior for a line, by the models in the output directory")
    add("--output", type=pathlib.Path, default="runs/bayes", help="folder of models and picture (default: runs/bayes)")
    arguments = parser.parse_args()
    files = arguments.texts or [pathlib.Path(importlib.util.find_spec(name).origin) for name in MODULES]
    arguments.texts = {path.stem.strip("_"): path for path in files}
    if len(arguments.texts) < max(2, len(files)) or arguments.steps < 1 or not all(path.is_file() for path in files):
        parser.error("--texts takes two files or more, of different names, that are there; --steps is at least 1")
    if arguments.classify is not None and not (arguments.output / "lines.json").exists():
        parser.error(f"{arguments.output} holds no models: train them first, without --classify")
    return arguments


def read_lines(path):
    """Lines to train with; of every tenth block of 20 lines, those that are not among them."""
    lines = [line.strip()[:LONGEST] for line in path.read_text("utf-8").splitlines() if len(line.strip()) >= SHORTEST]
    if not (held_out := sorted(set(lines) - set(train := [line for k, line in enumerate(lines) if k // 20 % 10 != 9]))):
        sys.exit(f"{path} must hold 200 different lines of {SHORTEST} characters or more. Received: {len(set(lines))}")
    return train, held_out


def trigram_likelihoods(train, lines, num_characters):
    """Log-likelihood of each line by trigrams of characters, each of which counts as seen 0.1 times more."""
    cut = [[f"\n\n{line}\n"[k : k + 3] for k in range(len(line) + 1)] for line in (*train, *lines)]
    counts = collections.Counter(gram[:size] for grams in cut[: len(train)] for gram in grams for size in (2, 3))
    shares = {gram: (counts[gram] + 0.1) / (counts[gram[:2]] + 0.1 * num_characters) for grams in cut for gram in grams}
    return [np.log([shares[gram] for gram in grams]).sum() for grams in cut[len(train) :]]


def train_models(arguments, tokenizer, train):
    """All begin as one model that has read everything; each then reads its own author, and is saved."""
    keras.utils.set_random_seed(0)
    model = keras_lt.models.LittleTransformer(tokenizer.vocabulary_size, max_sequence_length=LONGEST + 2)
    model.compile(keras_lt.optimizers.SmoothedRMS(0.01))
    begin, size = None, (LONGEST + 2, 32, tokenizer.encode("\n")[0])
    for name, lines in {"all texts": [*itertools.chain(*train.values())], **train}.items():
        print(f"reading {name}, {len(lines):,} lines", flush=True)
        windows = keras_lt.objectives.pack(map(tokenizer.encode, lines), *size, seed=0).repeat()
        model.set_weights(begin or model.get_weights())
        model.fit(windows, steps_per_epoch=-(-arguments.steps // (10 if begin else 1)), shuffle=False)
        begin, model.optimizer.learning_rate = begin or model.get_weights(), 0.003
        keras_lt.TextGenerator(model, tokenizer).save(arguments.output / name)


def model_likelihoods(folder, names, lines):
    """Of each line, as it stands between line breaks, by each author's model; one holds the weights of all in turn."""
    generators = [keras_lt.TextGenerator.load(folder / name) for name in names]
    for generator in generators:
        generators[0].model.set_weights(generator.model.get_weights())
        yield generators[0].score([f"\n{line}\n" for line in lines])["log_likelihood"]


def classify(arguments):
    counts = json.loads((arguments.output / "lines.json").read_text())
    likelihoods = np.ravel([*model_likelihoods(arguments.output, counts, [arguments.classify])])
    posterior = keras_lt.ops.bayes_posterior(likelihoods, np.log([*counts.values()]))
    print(*(f"{name:16} {float(share):6.1%}" for name, share in zip(counts, posterior, strict=True)), sep="\n")


def main(arguments):
    data = {name: read_lines(path) for name, path in arguments.texts.items()}
    train = {name: text for name, (text, _) in data.items()}
    lines, labels = zip(*[(line, k) for k, (_, text) in enumerate(data.values()) for line in text], strict=True)
    tokenizer = keras_lt.tokenizers.CharTokenizer.from_text("\n".join(itertools.chain(lines, *train.values())))
    train_models(arguments, tokenizer, train)
    (arguments.output / "lines.json").write_text(json.dumps(counts := {name: len(train[name]) for name in train}))
    trigrams = [trigram_likelihoods(text, lines, tokenizer.vocabulary_size) for text in train.values()]
    from matplotlib.figure import Figure

    axes, below = Figure((5.5, 6), layout="constrained").subplots(2, sharex=True, height_ratios=(3, 1))
    axes.plot([0, 1], [0, 1], color="grey", linestyle=":", label="as sure as right")
    for name, values in {"models": model_likelihoods(arguments.output, train, lines), "trigrams": trigrams}.items():
        posterior = np.asarray(keras_lt.ops.bayes_posterior(np.transpose([*values]), np.log([*counts.values()])))
        sure, right = posterior.max(axis=-1), posterior.argmax(axis=-1) == labels
        bins = np.minimum((sure * BINS).astype(int), BINS - 1)
        sizes, *sums = (np.bincount(bins, values, BINS) for values in (None, sure, right))
        error = abs(sums[0] - sums[1]).sum() / len(labels)  # the bins' mean distance from the diagonal
        print(f"{name:9} {right.mean():6.1%} right, {sure.mean():6.1%} sure, calibration error {error:.1%}")
        axes.plot(*(total[sizes > 0] / sizes[sizes > 0] for total in sums), marker="o", label=name)
        below.stairs(sizes, np.linspace(0, 1, BINS + 1))
    axes.set(ylabel="share that is right", title=f"{len(labels)} held-out lines")
    below.set(xlabel="posterior of the most probable author", ylabel="lines", yscale="log")
    axes.legend()
    axes.figure.savefig(arguments.output / "reliability.png", dpi=120)
    print(f"drawn in {arguments.output / 'reliability.png'}")


if __name__ == "__main__":
    arguments = parse_arguments()
    import keras
    import numpy as np

    import keras_lt

    (main if arguments.classify is None else classify)(arguments)
