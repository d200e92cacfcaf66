"""Train a TransformerEncoder to guess hidden characters from both sides, and hold it against counting.

Of the held-out text (the last 10 %) all guess the same characters: the chosen ones that show the mask, four in five;
where the model is shown a character, right or wrong, counting is not. `unigram` counts characters of the training text,
`trigram` those after two others (interpolated as by Witten and Bell). It is given the true two, even where the model
sees masks, so that with --whole-words it reads into the hidden word; what comes after the gap only the model reads.

python examples/train_masked_lm.py                  # Shakespeare or Python's help; three minutes on two CPU cores
python examples/train_masked_lm.py --whole-words    # hides words instead of characters
"""

import argparse
import importlib.util
import pathlib
import sys

MASK, LENGTH = "\0", 64


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", help="UTF-8 text file (default: Shakespeare, or where it is not to be had the text of Python's help)")
    add("--whole-words", action="store_true", help="hide whole words, not single characters")
    add("--steps", type=int, default=3000, help="batches of 32 windows (default: 3000)")
    add("--learning-rate", type=float, default=0.002, help="of SmoothedRMS, after the warm-up (default: 0.002)")
    add("--seed", type=int, default=0, help="seed of the weights and of the data (default: 0)")
    add("--output", type=pathlib.Path, default="runs/masked", help="directory to save in (default: runs/masked)")
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
    axes.set(xlabel="step", ylabel="bits per hidden character", title="Held-out text", ylim=(0, None))
    axes.legend()
    axes.figure.savefig(path, dpi=120)


def main(arguments):
    text, folder = read_text(arguments.data), arguments.output
    tokenizer = keras_lt.tokenizers.CharTokenizer.from_text(MASK + text)
    ids, size, [mask_id] = tokenizer.encode(text), tokenizer.vocabulary_size, tokenizer.encode(MASK)
    is_letter = np.array([character.isalnum() or character == "'" for character in text])
    words = np.cumsum(~(is_letter & np.roll(is_letter, 1))) if arguments.whole_words else None
    options = {"word_ids": words, "validation_split": 0.1, "seed": arguments.seed}
    train, validation = keras_lt.objectives.masked(ids, LENGTH, 32, mask_id, size, **options)
    x, y, chosen = (np.concatenate(parts) for parts in zip(*validation, strict=True))
    hidden = x == mask_id
    keras.utils.set_random_seed(arguments.seed)
    model = keras_lt.models.TransformerEncoder(size, LENGTH, hidden_dim=128)
    warmup = {"warmup_target": arguments.learning_rate, "warmup_steps": 0.05 * arguments.steps}
    rate = keras.optimizers.schedules.CosineDecay(0.0, 0.95 * arguments.steps, **warmup)
    model.compile(keras_lt.optimizers.SmoothedRMS(rate), weighted_metrics="auto")
    print(f"{model.count_params():,} parameters, {len(text):,} characters, {hidden.sum():,} held-out ones hidden")
    epochs = max(number for number in range(1, 11) if arguments.steps % number == 0)
    fit = {"epochs": epochs, "steps_per_epoch": arguments.steps // epochs, "verbose": 1 if sys.stdout.isatty() else 2}
    log = model.fit(train.repeat(), validation_data=(x, y, hidden.astype("float32")), shuffle=False, **fit).history
    folder.mkdir(parents=True, exist_ok=True)
    model.save(folder / "model.keras")
    tokenizer.save(folder / "tokenizer.json")
    num_train, fitted = int(len(ids) * 0.9), np.array(keras.ops.softmax(model.predict(x, verbose=0)))
    starts = np.minimum(np.arange(num_train, len(ids), LENGTH), len(ids) - LENGTH)
    places, truth, bits = (starts[:, None] + np.arange(LENGTH))[hidden], y[hidden], {}
    for name, order in (("unigram", 0), ("trigram", 2), ("model", None)):
        guess = fitted[hidden] if name == "model" else count(ids, num_train, places, order, size)
        bits[name], right = -np.log2(guess[np.arange(len(truth)), truth]).mean(), np.mean(guess.argmax(axis=1) == truth)
        print(f"{name:9}{bits[name]:.3f} bits per hidden character, {right:.2%} guessed right")
    steps = np.cumsum(epochs * [arguments.steps // epochs])
    draw(steps, {**bits, "model": np.log2(log["val_perplexity"])}, folder / "training.png")
    print(f"saved {folder}/model.keras and tokenizer.json, drawn {folder}/training.png\n")
    guessed = np.where(chosen, fitted.argmax(axis=-1), x)
    for row in range(0, len(x), 1 + len(x) // 3):
        for name, rows in (("shown", x), ("guessed", guessed), ("truth", y)):
            print(f"{name:9}{tokenizer.decode(rows[row])}".replace(MASK, "□").replace("\n", "↵"))
        print("wrong   ", "".join(" ^"[wrong] for wrong in (guessed != y)[row].tolist()).rstrip(), end="\n\n")


if __name__ == "__main__":
    arguments = parse_arguments()
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit('The picture needs matplotlib: pip install "keras_lt[plots]"')
    # Here, not above, so that --help answers at once.
    import keras
    import numpy as np

    import keras_lt

    main(arguments)
