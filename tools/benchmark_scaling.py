"""Measure how speed and memory of training grow with context, batch, width and depth.

python tools/benchmark_scaling.py      # eight minutes on two CPU cores
python tools/benchmark_scaling.py --sweeps context --contexts 64 256 1024 --seconds 1

A point is a fresh process that trains a `LittleTransformer` with `compile()` and `fit`, nothing tuned. Where nothing
else is said it has 2 layers, width 64, 4 heads, context 64. Context is varied at a fixed number of tokens a batch
(`--tokens`), once with full attention and once with a window of 64, so that what is left is the cost of a token.
Seconds are the median of the epochs of 8 batches after the first, which compiles. Memory is the peak of what the
process holds, less what it holds after the same model was trained on single windows of 8 tokens (libraries, weights,
optimizer): activations, gradients, and 50 to 100 MiB for compiling a larger program, which make small sizes look larger
and exponents of memory smaller. It is read from Linux; elsewhere it is the whole process's.

Exponents are the slopes of straight lines through all but the smallest quarter of the sizes, both axes logarithmic.
What a step costs beside arithmetic makes them smaller than they would be at greater sizes.

Prints tables, then one JSON line.
"""

import argparse
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import time

import numpy as np

from benchmarking import positive

STEPS = 8  # of an epoch
WINDOW = 64
SHORT = 8  # the context of what is trained on before memory is counted
BASE = {"context": 64, "batch": 32, "width": 64, "depth": 2, "window": None}
SWEEPS = ("context", "context, window 64", "batch", "width", "depth")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    contexts = [64, 128, 256, 512, 1024, 2048, 4096]
    add("--sweeps", nargs="+", choices=SWEEPS, default=SWEEPS, metavar="SWEEP", help=f"of {SWEEPS} (default: all)")
    add("--contexts", type=positive, nargs="+", default=contexts, help="(default: 64 128 ... 4096)")
    add("--batches", type=positive, nargs="+", default=[8, 32, 128, 512], help="(default: 8 32 128 512)")
    add("--widths", type=positive, nargs="+", default=[64, 128, 256, 512], help="(default: 64 128 256 512)")
    add("--depths", type=positive, nargs="+", default=[2, 4, 8], help="(default: 2 4 8)")
    add("--tokens", type=positive, default=4096, help="of a batch where context is varied (default: 4096)")
    add("--seconds", type=float, default=2.0, help="after which a point ends, two epochs at least (default: 2)")
    add("--point", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    for name in ("contexts", "batches", "widths", "depths"):
        sizes = sorted(set(getattr(arguments, name)))
        if len(sizes) < 2:
            parser.error(f"--{name} must be two or more different sizes")
        setattr(arguments, name, sizes)
    if arguments.contexts[-1] > arguments.tokens:
        parser.error(f"--tokens must be at least the longest of --contexts, {arguments.contexts[-1]}")
    if any(width % 4 for width in arguments.widths):
        parser.error("--widths must be multiples of 4, the number of heads")
    return arguments


def train(point: dict, seconds: float) -> dict[str, float]:
    """Seconds a token and megabytes of training at one point, in this process."""
    import keras

    import keras_lt

    model = keras_lt.models.LittleTransformer(
        max_sequence_length=point["context"],
        num_layers=point["depth"],
        hidden_dim=point["width"],
        window_size=point["window"],
    )
    model.compile()
    tokens = STEPS * point["batch"] * point["context"]
    ids = np.random.default_rng(0).integers(65, size=tokens + point["context"] + 1)
    model.fit(keras_lt.objectives.causal_windows(ids, SHORT, 1, seed=0).take(STEPS), shuffle=False, verbose=0)
    held, epochs = reset_peak(), []
    windows = keras_lt.objectives.causal_windows(ids, point["context"], point["batch"], seed=0).take(STEPS)

    def on_epoch_end(epoch, logs):
        epochs.append(time.perf_counter())
        model.stop_training = epoch >= 2 and epochs[-1] - epochs[0] > seconds

    callback = keras.callbacks.LambdaCallback(on_epoch_end=on_epoch_end)
    model.fit(windows, epochs=1_000_000, shuffle=False, verbose=0, callbacks=[callback])
    return {
        "seconds_per_token": statistics.median(np.diff(epochs)) / tokens,
        "megabytes": max(peak_bytes() - held, 1) / 2**20,
    }


def reset_peak() -> int:
    """Let the peak of resident memory start anew; returns the bytes that are resident now, or 0 where it cannot."""
    try:
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        return int(status("VmRSS")) * 2**10
    except OSError:
        return 0


def peak_bytes() -> int:
    try:
        return int(status("VmHWM")) * 2**10
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 2**10)


def status(name: str) -> str:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(line.split()[1] for line in lines if line.startswith(f"{name}:"))


def measure(point: dict, seconds: float) -> dict[str, float]:
    """The same in a fresh process."""
    root = str(pathlib.Path(__file__).resolve().parent.parent)
    environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [root, environment.get("PYTHONPATH")]))
    command = [sys.executable, __file__, "--point", json.dumps(point), "--seconds", str(seconds)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{point} failed:\n{result.stderr}")
    return json.loads(result.stdout.splitlines()[-1])


def points_of(sweep: str, arguments: argparse.Namespace) -> list[tuple[int, dict]]:
    """The sizes of a sweep, and the point of each."""
    if sweep.startswith("context"):
        window = WINDOW if "window" in sweep else None
        return [
            (size, {**BASE, "context": size, "batch": arguments.tokens // size, "window": window})
            for size in arguments.contexts
        ]
    plural = {"batch": arguments.batches, "width": arguments.widths, "depth": arguments.depths}
    return [(size, {**BASE, sweep: size}) for size in plural[sweep]]


def exponent(sizes: list[int], values: list[float]) -> float:
    """The slope of `log(value)` over `log(size)`, without the smallest quarter of the sizes."""
    first = len(sizes) // 4
    slope, _ = np.polyfit(np.log(sizes[first:]), np.log(values[first:]), 1)
    return round(float(slope), 2)


def main(arguments: argparse.Namespace) -> None:
    if arguments.point:
        print(json.dumps(train(json.loads(arguments.point), arguments.seconds)))
        return
    results, exponents = {}, {}
    print(f"{'':20}{'size':>6}{'tokens/s':>12}{'MiB':>10}")
    for sweep in arguments.sweeps:
        results[sweep] = []
        for size, point in points_of(sweep, arguments):
            found = {"size": size, **measure(point, arguments.seconds)}
            results[sweep].append(found)
            speed = 1 / found["seconds_per_token"]
            print(f"{sweep:20}{size:6}{speed:12,.0f}{found['megabytes']:10,.1f}", flush=True)
        sizes, *values = zip(*(x.values() for x in results[sweep]), strict=True)
        exponents[sweep] = [exponent(sizes, value) for value in values]
    print(f"\n{'grows as size^':20}{'seconds a token':>18}{'memory':>10}")
    for sweep, (seconds, memory) in exponents.items():
        print(f"{sweep:20}{seconds:18.2f}{memory:10.2f}")
    print(json.dumps({"points": results, "exponents": exponents}))


if __name__ == "__main__":
    main(parse_arguments())
