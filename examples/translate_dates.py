"""Dates as people write them into ISO 8601: a recurrent encoder-decoder with attention and without, and a Transformer.

S2's point: without attention all that is known of the source has to pass through one state of fixed size. The three
have about as many parameters and see the same pairs; the test is on days of which no training pair is. Each is saved
as a TextGenerator; the picture shows what the ones with attention look at as they write each character.

python examples/translate_dates.py                          # a minute and a half on two CPU cores
python examples/translate_dates.py --models attention --translate "the 5 of May 1998" "Jul 4, 1976"
"""

import argparse
import datetime
import importlib.util
import pathlib
import random
import sys

WIDTHS = {"attention": 64, "no attention": 77, "transformer": 48}  # of about as many parameters
PAD, START, END = "\0\2\3"  # characters that no text holds; padding has the id 0
FORMATS = (
    *("{0.day} {0:%B} {0.year}", "the {0.day} of {0:%B} {0.year}", "{0.day} {0:%b} {0.year}", "{0:%d}-{0:%b}-{0.year}"),
    *("{0:%B} {0.day}, {0.year}", "{0:%b} {0.day}, {0.year}", "{0.year} {0:%B} {0.day}", "{0:%d%m}{0.year}"),
    *("{0:%A}, {0:%B} {0.day}, {0.year}", "{0:%A}, {0.day} {0:%B} {0.year}", "{0:%a} {0.day} {0:%b} {0.year}"),
    *("{0.day}.{0.month}.{0.year}", "{0:%d.%m}.{0.year}", "{0.month}/{0.day}/{0.year}", "{0.year}/{0:%m/%d}"),
)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", nargs="+", choices=WIDTHS, default=list(WIDTHS), help="which to train (default: all)")
    add("--cell", choices=["rnn", "lstm", "gru"], default="gru", help="of the recurrent ones (default: gru)")
    add("--steps", type=int, default=1000, help="batches of 64 pairs (default: 1000)")
    add("--seed", type=int, default=0, help="seed of pairs and weights (default: 0)")
    add("--translate", nargs="+", metavar="DATE", default=[], help="dates to translate at the end")
    add("--output", type=pathlib.Path, default="runs/dates", help="folder of models and picture (default: runs/dates)")
    arguments = parser.parse_args()
    return arguments if arguments.steps > 0 else parser.error("--steps must be at least 1")


def make_pairs(num_train, num_test, seed):
    """Two lists of (date as written, ISO date): every tenth day, drawn at random, is for the test alone."""
    generator, first = random.Random(seed), datetime.date(1900, 1, 1)
    days = [first + datetime.timedelta(number) for number in range(73_049)]  # to the end of 2099
    generator.shuffle(days)
    groups = (days[7_305:], num_train), (days[:7_305], num_test)
    drawn = [[(generator.choice(days), generator.choice(FORMATS)) for _ in range(count)] for days, count in groups]
    return [[(form.format(day), day.isoformat()) for day, form in group] for group in drawn]


def make_model(name, arguments, **shared):
    keras.utils.set_random_seed(arguments.seed)
    if name == "transformer":
        model = keras_lt.models.TransformerSeq2Seq(num_layers=1, hidden_dim=WIDTHS[name], **shared)
    else:
        own = {"cell": arguments.cell, "attention": name == "attention", "hidden_dim": WIDTHS[name]}
        model = keras_lt.models.RecurrentSeq2Seq(**own, **shared)
    rate = keras.optimizers.schedules.CosineDecay(0.0, arguments.steps, warmup_target=0.005, warmup_steps=100)
    model.compile(keras.optimizers.Adam(rate, global_clipnorm=1.0))
    return model


def draw(generators, text, path):
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6 * len(generators), 4), layout="constrained")
    figure.subplots(1, len(generators))
    for axes, (name, generator) in zip(figure.axes, generators.items(), strict=True):
        answer, encode = generator.generate(text, 12), generator.tokenizer.encode
        ids = {"source": encode(text)[None], "target": encode(START + answer)[None]}
        _, scores = generator.model(ids, return_attention_scores=True)
        weights = keras.ops.convert_to_numpy(scores["cross"][-1])[0].mean(axis=0)  # over the heads
        image = axes.imshow(weights, vmin=0, vmax=1, cmap="Blues")
        axes.set(title=f"{name}: {answer}", xlabel="read", ylabel="written")
        axes.set_xticks(range(len(text)), list(text))
        axes.set_yticks(range(len(answer) + 1), [*answer, "end"])
    figure.colorbar(image, ax=figure.axes, label="attention weight")
    figure.savefig(path, dpi=120)
    print(f"drawn in {path}")


def main(arguments):
    train, test = make_pairs(64 * arguments.steps, 2000, arguments.seed)
    tokenizer = keras_lt.tokenizers.CharTokenizer.from_text(PAD + START + END + "".join(map("".join, train + test)))
    marks = dict(zip(("start_token_id", "end_token_id"), tokenizer.encode(START + END).tolist(), strict=True))
    sources, targets = ([tokenizer.encode(text) for text in side] for side in zip(*train, strict=True))
    batches = keras_lt.objectives.pairs(sources, targets, 64, **marks, seed=arguments.seed)
    shared = {"vocabulary_size": tokenizer.vocabulary_size, "mask_zero": True, **marks}
    print(f"{len(train):,} pairs to train with, such as {train[0]}; {len(test):,} on other days to test with")
    generators, rows = {}, []
    for name in arguments.models:
        model = make_model(name, arguments, **shared)
        print(f"\n{name}: {model.count_params():,} parameters")
        loss = model.fit(batches, shuffle=False, verbose=1 if sys.stdout.isatty() else 2).history["loss"][-1]
        generators[name] = generator = keras_lt.TextGenerator(model, tokenizer)
        generator.save(arguments.output / name.replace(" ", "_"))
        answers = generator.generate([source for source, _ in test], 12)
        wrong = [(source, answer) for (source, target), answer in zip(test, answers, strict=True) if answer != target]
        print(*(f"wrong: {source!r} -> {answer!r}" for source, answer in wrong[:3]), sep="\n")
        exact, size = 100 - 100 * len(wrong) / len(test), model.count_params()
        rows.append(f"{name:13} {size:10,} {loss:8.4f} {exact:8.2f} %")
    print("\nmodel         parameters     loss  exact match", *rows, sep="\n")
    for text in arguments.translate:
        print(f"{text}: " + ", ".join(f"{generator.generate(text, 12)} ({n})" for n, generator in generators.items()))
    if looking := {name: generator for name, generator in generators.items() if name != "no attention"}:
        draw(looking, "Sunday, March 10, 1985", arguments.output / "alignment.png")


if __name__ == "__main__":
    arguments = parse_arguments()
    if importlib.util.find_spec("matplotlib") is None:
        sys.exit('The picture needs matplotlib: pip install "keras_lt[plots]"')
    # Here, not above, so that --help answers at once.
    import keras

    import keras_lt

    main(arguments)
