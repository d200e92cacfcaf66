"""Call `generate` of a SavedModel from many threads: does every answer equal the single-threaded one, is memory flat?

python tools/stress_saved_model.py --model served/1                       # a minute with eight threads
python tools/stress_saved_model.py --model served/1 --threads 16 --seconds 600 --prompt "The " --prompt "ROMEO:"

Prints a table, then one JSON line. The exit code is 1 if an answer differs.
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

Job = tuple[list[str], float, int]  # prompts, temperature, seed
WARM_UP = 0.2  # share of the time


def parse_arguments(command: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="directory of one version, as export_saved_model returns it: served/1")
    add("--threads", type=int, default=8, help="(default: 8)")
    add("--seconds", type=float, default=60.0, help="(default: 60)")
    add("--prompt", action="append", help='text to continue; may be given several times (default: "\\n" and "The ")')
    add("--max-new-tokens", type=int, default=40, help="(default: 40)")
    arguments = parser.parse_args(command)
    arguments.prompt = arguments.prompt or ["\n", "The "]
    for name in ("threads", "seconds"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name} must be more than 0, not {getattr(arguments, name)}")
    return arguments


def load_generate(path: str, max_new_tokens: int) -> Callable[[Job], list[bytes]]:
    """The signature `generate` of a SavedModel, as a function of a job."""
    import tensorflow as tf

    model = tf.saved_model.load(path)
    if "generate" not in model.signatures:
        raise ValueError(f"{path} has no signature generate. It has {', '.join(model.signatures)}")
    signature = model.signatures["generate"]

    def generate(job: Job) -> list[bytes]:
        prompts, temperature, seed = job
        settings = {
            "max_new_tokens": tf.constant(max_new_tokens),
            "temperature": tf.constant(temperature),
            "top_k": tf.constant(0),
            "top_p": tf.constant(1.0),
            "seed": tf.constant(seed),
        }
        return signature(prompts=tf.constant(prompts), **settings)["texts"].numpy().tolist()

    return generate


def make_jobs(prompts: list[str]) -> list[Job]:
    """Each prompt alone, and all in one batch, which gives the shapes something to vary; greedy and sampled."""
    batches = [[prompt] for prompt in prompts] + [prompts, prompts[::-1] * 2]
    return [(batch, temperature, seed) for batch in batches for temperature, seed in [(0.0, 0), (0.8, 1), (0.8, 2)]]


def stress(generate: Callable[[Job], list[bytes]], jobs: list[Job], num_threads: int, seconds: float) -> dict[str, Any]:
    """Call `generate` for all jobs, again and again, from several threads.

    Args:
        generate: Function of a job.
        jobs: What to call it with.
        num_threads: Integer.
        seconds: Float. For how long.

    Returns:
        A dictionary of numbers: calls, calls a second, different answers, failed calls, and the resident memory in MB
        at the start, after the warm-up and at the end. `"first_error"` is a string, or `None`.
    """
    expected = [generate(job) for job in jobs]
    calls, different, errors = [0] * num_threads, [0] * num_threads, []
    stop = threading.Event()

    def work(thread: int) -> None:
        place = thread * len(jobs) // num_threads
        while not stop.is_set():
            try:
                different[thread] += generate(jobs[place]) != expected[place]
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
            calls[thread] += 1
            place = (place + 1) % len(jobs)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(num_threads)]
    memory = [resident_megabytes()]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for pause in (WARM_UP * seconds, (1 - WARM_UP) * seconds):
        time.sleep(pause)
        memory.append(resident_megabytes())
    stop.set()
    for thread in threads:
        thread.join()
    elapsed = time.perf_counter() - start
    return {
        "threads": num_threads,
        "seconds": round(elapsed, 2),
        "calls": sum(calls),
        "calls_per_second": round(sum(calls) / elapsed, 1),
        "different_answers": sum(different),
        "failed_calls": len(errors),
        "first_error": errors[0] if errors else None,
        **dict(zip(("megabytes_at_start", "megabytes_after_warm_up", "megabytes_at_end"), memory, strict=True)),
    }


def resident_megabytes() -> float | None:
    """Memory of this process that is in use, or `None` where Linux's /proc is not there."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:
        return None
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)


def main(arguments: argparse.Namespace) -> int:
    generate = load_generate(arguments.model, arguments.max_new_tokens)
    result = stress(generate, make_jobs(arguments.prompt), arguments.threads, arguments.seconds)
    for name, value in result.items():
        print(f"{name.replace('_', ' '):24} {'-' if value is None else value!s:>12}")
    print(json.dumps({"model": arguments.model, **result}))
    return 1 if result["different_answers"] or result["failed_calls"] else 0


if __name__ == "__main__":
    arguments = parse_arguments()
    try:
        sys.exit(main(arguments))
    except KeyboardInterrupt:
        sys.exit("\nInterrupted.")
    except Exception as error:  # such as a directory that is no SavedModel, or a prompt that the vocabulary lacks
        sys.exit(f"{type(error).__name__}: {error}")
