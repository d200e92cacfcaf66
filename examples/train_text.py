"""Train a character-level LittleTransformer on a text; the same command goes on where an earlier run stopped.

python examples/train_text.py                                 # S3's model, a minute on two CPU cores
python examples/train_text.py --preset quick --steps 900      # nearly as good, in a quarter of the time
python examples/train_text.py --data my_text.txt --preset nanogpt-cpu --steps 2000
"""

import argparse
import json
import math
import pathlib
import sys

PRESETS = {"little": (32, 0.01), "quick": (16, 0.005), "nanogpt-cpu": (12, 0.003)}  # batch size, learning rate


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", help="UTF-8 text file (default: Shakespeare, or where it is not to be had the text of Python's help)")
    add("--preset", choices=PRESETS, default="little", help="size of the model (default: little)")
    add("--steps", type=int, default=5000, help="batches; a multiple of 10 is saved ten times (default: 5000)")
    add("--batch-size", type=int, help="windows a batch (default: little 32, quick 16, nanogpt-cpu 12)")
    add("--optimizer", default="SmoothedRMS", help="SmoothedRMS, or a class of keras.optimizers such as AdamW")
    add("--learning-rate", type=float, help="(default: little 0.01, quick 0.005, nanogpt-cpu 0.003; others: 0.001)")
    add("--schedule", choices=["cosine", "constant"], default="cosine", help="cosine: 100 steps of warm-up, then decay")
    add("--seed", type=int, default=0, help="seed of the weights and of the order of the data (default: 0)")
    add("--sample", type=int, default=300, help="characters to generate at the end (default: 300)")
    add("--output", help="directory to save in and to go on from (default: runs/PRESET)")
    add("--restart", action="store_true", help="start anew, whatever the output directory holds")
    arguments = parser.parse_args()
    if arguments.steps < 1:
        parser.error(f"--steps must be at least 1, not {arguments.steps}")
    arguments.batch_size = arguments.batch_size or PRESETS[arguments.preset][0]
    if arguments.learning_rate is None:
        arguments.learning_rate = PRESETS[arguments.preset][1] if arguments.optimizer == "SmoothedRMS" else 0.001
    return arguments


def read_text(path):
    if path:
        return keras_lt.datasets.tiny_shakespeare(path)
    try:
        return keras_lt.datasets.tiny_shakespeare()
    except OSError:
        print("Shakespeare is not to be had here (no file, no download): training on the text of Python's help.")
        return keras_lt.datasets.python_topics()


def make_model(arguments, vocabulary_size):
    keras.utils.set_random_seed(arguments.seed)
    preset = getattr(keras_lt.models.presets, arguments.preset.upper().replace("-", "_"))
    model = keras_lt.models.LittleTransformer(**{**preset, "vocabulary_size": vocabulary_size})
    rate, warmup = arguments.learning_rate, min(100, arguments.steps // 10)
    if arguments.schedule == "cosine":
        cosine = keras.optimizers.schedules.CosineDecay
        rate = cosine(0.0, arguments.steps - warmup, warmup_target=rate, warmup_steps=warmup)
    package = keras_lt.optimizers if arguments.optimizer == "SmoothedRMS" else keras.optimizers
    model.compile(getattr(package, arguments.optimizer)(rate), weighted_metrics="auto")
    return model


def main(arguments):
    text = read_text(arguments.data)
    tokenizer = keras_lt.tokenizers.CharTokenizer.from_text(text)
    folder = pathlib.Path(arguments.output or f"runs/{arguments.preset}")
    settings_file = folder / "settings.json"
    settings = {**vars(arguments), "restart": None, "sample": None, "characters": len(text)}
    if settings_file.exists() and (folder / "text_generator.json").exists() and not arguments.restart:
        saved = json.loads(settings_file.read_text())
        if changed := [f"{key}={saved.get(key)}" for key in settings if saved.get(key) != settings[key]]:
            changes = ", ".join(changed)
            sys.exit(
                f"{folder} holds a run with {changes}. Choose another --output, --restart, or train on as in README."
            )
        generator = keras_lt.TextGenerator.load(folder)
    else:
        generator = keras_lt.TextGenerator(make_model(arguments, tokenizer.vocabulary_size), tokenizer)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "text_generator.json").unlink(missing_ok=True)
        settings_file.write_text(json.dumps(settings, indent=1))
    model = generator.model
    ids, sizes = tokenizer.encode(text), (model.max_sequence_length, arguments.batch_size)
    windows, validation = keras_lt.objectives.causal_windows(ids, *sizes, validation_split=0.1, seed=arguments.seed)
    done, steps = int(model.optimizer.iterations), arguments.steps
    epochs = max(number for number in range(1, 11) if steps % number == 0)
    print(f"{model.count_params():,} parameters, {len(text):,} characters, {done} of {steps} steps done")
    if done < steps:
        model.fit(
            windows.repeat().skip(done),  # the data is a function of the step, so going on is exact
            steps_per_epoch=steps // epochs,
            initial_epoch=done * epochs // steps,
            epochs=epochs,
            validation_data=validation,
            shuffle=False,
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: generator.save(folder))],
            verbose=1 if sys.stdout.isatty() else 2,
        )
    perplexity = model.evaluate(validation, verbose=0, return_dict=True)["perplexity"]
    loss = math.log(perplexity)
    print(f"validation loss {loss:.4f}, perplexity {perplexity:.3f}, {loss / math.log(2):.3f} bits per character")
    print(f"saved in {folder}")
    if arguments.sample:
        prompt = text[: text.find("\n", 1) + 1] or text[:1]
        print("A sample at temperature 0.8:\n")
        print(generator.generate(prompt, arguments.sample, temperature=0.8, seed=arguments.seed))


if __name__ == "__main__":
    arguments = parse_arguments()
    # Here, not above, so that --help answers at once.
    import keras

    import keras_lt

    try:
        main(arguments)
    except KeyboardInterrupt:
        sys.exit("\nInterrupted: the same command goes on from the last epoch that was finished.")
