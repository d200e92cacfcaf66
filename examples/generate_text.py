"""Continue a text with a model that was trained and saved; the new text appears as it comes.

python examples/generate_text.py --prompt "The "              # after examples/train_text.py
python examples/generate_text.py --model runs/nanogpt-cpu --prompt "ROMEO:" --temperature 0.7 --top-p 0.9 --stop ROMEO
"""

import argparse
import sys
import time


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="runs/little", help="directory that TextGenerator.save wrote (default: runs/little)")
    add("--prompt", default="\n", help="text to continue (default: a line break)")
    add("--max-new-tokens", type=int, default=500, help="(default: 500)")
    add("--temperature", type=float, default=0.8, help="0 takes the likeliest token each time (default: 0.8)")
    add("--top-k", type=int, default=0, help="draw from the k likeliest tokens (default: 0, all)")
    add(
        "--top-p", type=float, default=1.0, help="draw from the likeliest that reach this probability (default: 1, all)"
    )
    add("--min-p", type=float, default=0.0, help="least probability, relative to the likeliest token (default: 0)")
    add("--repetition-penalty", type=float, default=1.0, help="above 1, repetition is less likely (default: 1)")
    add("--seed", type=int, help="the same seed gives the same text (default: another text each time)")
    add("--stop", action="append", help="text to stop before; may be given several times")
    return parser.parse_args()


def main(arguments):
    settings = vars(arguments)
    generator = keras_lt.TextGenerator.load(settings.pop("model"))
    print(generator, file=sys.stderr)
    prompt, start, num_characters = settings.pop("prompt"), time.perf_counter(), 0
    pieces = generator.stream(prompt, **settings)
    print(prompt, end="", flush=True)
    for piece in pieces:
        print(piece, end="", flush=True)
        num_characters += len(piece)
    seconds = time.perf_counter() - start
    print(f"\n{num_characters} characters in {seconds:.1f} s, compiling included", file=sys.stderr)


if __name__ == "__main__":
    arguments = parse_arguments()
    # Here, not above, so that --help answers at once.
    import keras_lt

    try:
        main(arguments)
    except (OSError, ValueError) as error:
        sys.exit(f"{error}")
    except KeyboardInterrupt:
        sys.exit("\nInterrupted.")
