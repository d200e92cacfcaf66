"""A client of an exported model that imports neither keras_lt nor Keras: only TensorFlow, or only onnxruntime.

python examples/serve_saved_model.py --prompt "The " --prompt "A "       # after examples/export_saved_model.py
python examples/serve_saved_model.py --onnx little.onnx --tokenizer runs/little/tokenizer.json --prompt "The "
"""

import argparse
import json
import pathlib
import sys


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add(
        "--model",
        default="served/little",
        help="directory of a version, or of versions, then the newest (default: served/little)",
    )
    add("--prompt", action="append", help="text to continue; may be given several times (default: a line break)")
    add("--max-new-tokens", type=int, default=200, help="(default: 200)")
    add("--temperature", type=float, default=0.8, help="0 takes the likeliest token each time (default: 0.8)")
    add("--top-k", type=int, default=0, help="draw from the k likeliest tokens (default: 0, all)")
    add(
        "--top-p", type=float, default=1.0, help="draw from the likeliest that reach this probability (default: 1, all)"
    )
    add("--seed", type=int, default=0, help="the same seed gives the same text (default: 0)")
    add("--onnx", help="ONNX file of the logits, in place of --model")
    add("--tokenizer", help="with --onnx: tokenizer.json of a CharTokenizer")
    add("--context", type=int, default=64, help="with --onnx: tokens the model looks at (default: 64)")
    return parser.parse_args()


def generate_with_tensorflow(arguments):
    import tensorflow as tf

    folder = pathlib.Path(arguments.model)
    versions = [path for path in folder.glob("*/") if path.name.isdigit()]
    if not versions and not (folder / "saved_model.pb").exists():
        raise ValueError(f"{folder} holds no exported model and no versions of one: run examples/export_saved_model.py")
    loaded = tf.saved_model.load(str(max(versions, key=lambda path: int(path.name), default=folder)))
    if "generate" not in loaded.signatures:
        raise ValueError("The model takes no text: export it on TensorFlow, with a tokenizer of characters or bytes")
    settings = {name: getattr(arguments, name) for name in ("max_new_tokens", "temperature", "top_k", "top_p", "seed")}
    settings = {name: tf.constant(value) for name, value in settings.items()}
    try:
        answer = loaded.signatures["generate"](prompts=tf.constant(arguments.prompt), **settings)
    except tf.errors.InvalidArgumentError as error:
        # Of TensorFlow's lines, the one that says what is wrong with the prompts.
        raise ValueError(next(line for line in error.message.splitlines() if "assertion failed" in line)) from None
    scores = loaded.signatures["score"](texts=answer["texts"])
    for text, score, count in zip(answer["texts"], scores["log_likelihood"], scores["token_counts"], strict=True):
        loss = -float(score) / max(1, int(count))
        print(f"{text.numpy().decode()}\n\n--- minus the mean log-likelihood of a token: {loss:.3f} nats\n")


def generate_with_onnx(arguments):
    """One call of the model for each token: ONNX carries the logits alone, without a cache."""
    import numpy as np
    import onnxruntime

    for path in (arguments.onnx, arguments.tokenizer):
        if not pathlib.Path(path).is_file():
            raise ValueError(f"There is no file {path}")
    vocabulary = json.loads(pathlib.Path(arguments.tokenizer).read_text(encoding="utf-8"))["config"]["vocabulary"]
    session = onnxruntime.InferenceSession(arguments.onnx)
    generator = np.random.default_rng(arguments.seed)
    for prompt in arguments.prompt:
        unknown = sorted(set(prompt) - set(vocabulary))
        if unknown or not prompt:
            raise ValueError(f"A prompt must hold a character, and those of the vocabulary only: {prompt!r}, {unknown}")
        ids = [vocabulary.index(character) for character in prompt]
        for _ in range(arguments.max_new_tokens):
            (logits,) = session.run(None, {"token_ids": np.array([ids[-arguments.context :]], "int32")})
            if arguments.temperature == 0:
                ids.append(int(logits[0, -1].argmax()))
                continue
            weights = np.exp((logits[0, -1] - logits[0, -1].max()) / arguments.temperature, dtype="float64")
            ids.append(int(generator.choice(len(vocabulary), p=weights / weights.sum())))
        print("".join(vocabulary[token_id] for token_id in ids), end="\n\n---\n\n")


if __name__ == "__main__":
    arguments = parse_arguments()
    arguments.prompt = arguments.prompt or ["\n"]
    if arguments.onnx and not arguments.tokenizer:
        sys.exit("--onnx needs --tokenizer: ONNX carries no vocabulary")
    try:
        generate_with_onnx(arguments) if arguments.onnx else generate_with_tensorflow(arguments)
    except (OSError, ValueError) as error:
        sys.exit(f"{error}")
