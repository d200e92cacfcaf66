"""Recurrent networks and a Transformer of as many parameters learn the same text from the same batches.

Each gets the width that brings its number of parameters nearest to `--parameters`, and the same windows in the same
order. All train with SmoothedRMS, 100 steps of warm-up and cosine decay, at a rate of 0.01, which of 0.03, 0.01, 0.003
and 0.001 was best for each on Shakespeare; `--learning-rates 0.03 0.01 0.003 0.001` chooses anew (seed 0).

python examples/train_recurrent.py   # four minutes on two CPU cores
"""

import argparse
import importlib.util
import math
import pathlib
import sys
import time

CELLS = ("rnn", "lstm", "gru", "transformer")
SEQUENCE_LENGTH, BATCH_SIZE = 64, 32


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add, folder = parser.add_argument, "runs/recurrent"
    add("--data", help="UTF-8 text file (default: Shakespeare, or where it is not to be had the text of Python's help)")
    add("--cells", nargs="+", choices=CELLS, default=list(CELLS), help="(default: all four)")
    add("--parameters", type=int, default=31489, help="of each, about (default: 31489, S3's LittleTransformer)")
    add("--steps", type=int, default=3000, help="batches; a multiple of 10 is validated ten times (default: 3000)")
    add("--learning-rates", type=float, nargs="+", default=[0.01], help="of several the best of seed 0 (default: 0.01)")
    add("--clip", type=float, default=1.0, help="greatest norm of the gradient, 0 for any (default: 1)")
    add("--seeds", type=int, default=1, help="number of seeds, of weights and batches (default: 1)")
    add("--output", type=pathlib.Path, default=folder, help=f"folder to save in (default: {folder})")
    arguments = parser.parse_args()
    if min(arguments.parameters, arguments.steps, arguments.seeds) < 1 or arguments.clip < 0:
        parser.error("--parameters, --steps and --seeds must be at least 1, --clip at least 0")
    return arguments


def read_text(path):
    if path:
        return keras_lt.datasets.tiny_shakespeare(path)
    try:
        return keras_lt.datasets.tiny_shakespeare()
    except OSError:
        print("Shakespeare is not to be had here (no file, no download): training on the text of Python's help.")
        return keras_lt.datasets.python_topics()


def make_model(cell, width, vocabulary_size):
    if cell == "transformer":
        return keras_lt.models.LittleTransformer(vocabulary_size, SEQUENCE_LENGTH, 2, 4, hidden_dim=width)
    return keras_lt.models.RecurrentLM(vocabulary_size, cell, hidden_dim=width)


def choose_width(cell, budget, vocabulary_size):
    """The number of parameters is a polynomial of degree 2 in the width, which three models tell."""
    counts = [make_model(cell, width, vocabulary_size).count_params() for width in (4, 8, 12)]
    count = np.polynomial.Polynomial.fit((4, 8, 12), counts, 2)
    candidates = range(4, 10_000, 4 if cell == "transformer" else 1)  # four heads share the width
    return min(candidates, key=lambda width: abs(count(width) - budget))


def train(cell, width, rate, seed, ids, vocabulary_size, arguments):
    """The last validation loss in nats, the rate, the losses after each tenth of the steps, seconds, the model."""
    steps, sizes, warmup = arguments.steps, (SEQUENCE_LENGTH, BATCH_SIZE), min(100, arguments.steps // 10)
    windows, validation = keras_lt.objectives.causal_windows(ids, *sizes, validation_split=0.1, seed=seed)
    keras.utils.set_random_seed(seed)
    model = make_model(cell, width, vocabulary_size)
    print(f"\n{cell} of width {width}, {model.count_params():,} parameters, learning rate {rate:g}, seed {seed}")
    rates = keras.optimizers.schedules.CosineDecay(0.0, steps - warmup, warmup_target=rate, warmup_steps=warmup)
    optimizer = keras_lt.optimizers.SmoothedRMS(rates, global_clipnorm=arguments.clip or None)
    model.compile(optimizer, weighted_metrics="auto")
    epochs, start = max(number for number in range(1, 11) if steps % number == 0), time.perf_counter()
    plan = {"steps_per_epoch": steps // epochs, "epochs": epochs, "verbose": 1 if sys.stdout.isatty() else 2}
    history = model.fit(windows.repeat(), validation_data=validation, shuffle=False, **plan).history
    losses = np.nan_to_num(np.log(history["val_perplexity"]), nan=np.inf)
    return losses[-1], rate, losses, time.perf_counter() - start, model


def main(arguments):
    from matplotlib.figure import Figure

    text, rows, results = read_text(arguments.data), [], []
    tokenizer = keras_lt.tokenizers.CharTokenizer.from_text(text)
    data = tokenizer.encode(text), tokenizer.vocabulary_size, arguments
    axes = Figure(figsize=(7, 4.5), layout="constrained").subplots()
    axes.set(xlabel="step", ylabel="validation loss [nats per character]")
    for cell in arguments.cells:
        width, runs = choose_width(cell, arguments.parameters, data[1]), []
        rates = arguments.learning_rates
        for seed in range(arguments.seeds):
            runs.append(min((train(cell, width, rate, seed, *data) for rate in rates), key=lambda run: run[0]))
            rates = [runs[0][1]]
        last, rates, losses, seconds, models = zip(*runs, strict=True)
        steps = np.linspace(0, arguments.steps, len(losses[0]) + 1)[1:]
        axes.plot(steps, np.mean(losses, axis=0), marker="o", label=f"{cell}, width {width}")
        loss, spread, number = np.mean(last), np.ptp(last), models[0].count_params()
        sizes = f"{cell:11}  {width:5}  {number:10,}  {rates[0]:5g}  {np.mean(seconds):7.0f}"
        rows.append(f"{sizes}  {loss:15.4f}  {spread:6.4f}  {loss / math.log(2):14.3f}")
        results += runs
    print("\nmodel        width  parameters   rate  seconds  validation loss   range  bits/character", *rows, sep="\n")
    generator = keras_lt.TextGenerator(min(results, key=lambda run: run[0])[-1], tokenizer)
    generator.save(arguments.output)
    axes.legend(title="mean of the seeds")
    axes.figure.savefig(arguments.output / "curves.png", dpi=120)
    print(f"\nThe best and curves.png are saved in {arguments.output}; a sample of the best at temperature 0.8:\n")
    print(generator.generate(text[: text.find("\n", 1) + 1] or text[:1], 300, temperature=0.8, seed=0))


if __name__ == "__main__":
    arguments = parse_arguments()
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit('The picture needs matplotlib: pip install "keras_lt[plots]"')
    # Here, not above, so that --help answers at once.
    import keras
    import numpy as np

    import keras_lt

    main(arguments)
