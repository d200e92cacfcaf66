"""What the benchmarks share: contenders in processes of their own, interleaved rounds, a table and a JSON line."""

import argparse
import dataclasses
import importlib.util
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable

_HERE = pathlib.Path(__file__).resolve().parent


@dataclasses.dataclass(frozen=True)
class Contender:
    """One way to do the work.

    Args:
        name: What the table calls it.
        prepare: Function of a column's name (and, as keywords, of what `add_settings` added) that does all that happens
            once, warm-up included, and returns a function without arguments that measures one round and returns a
            number.
        backend: Keras backend of its process. Defaults to `"tensorflow"`.
        needs: Names of the modules without which it is skipped.
        columns: The columns that it has. Defaults to `None`, all.
    """

    name: str
    prepare: Callable[..., Callable[[], float]]
    backend: str = "tensorflow"
    needs: tuple[str, ...] = ()
    columns: tuple[str, ...] | None = None


class Worker:
    """A process that prepares one contender and then measures a round whenever it is asked to."""

    def __init__(self, contender: Contender, column: str):
        environment = {"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ, "KERAS_BACKEND": contender.backend}
        package = str(_HERE.parent)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [package, environment.get("PYTHONPATH")]))
        command = [sys.executable, *sys.argv, "--worker", contender.name, "--columns", column]
        self.complaints = tempfile.TemporaryFile("w+")  # noqa: SIM115 (a pipe that nobody reads may fill up)
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.complaints, text=True
        )
        self.error = None
        self._ask()

    def measure(self) -> float | None:
        """One round, or `None` if the process has failed."""
        if self.error is None:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        return self._ask()

    def close(self):
        if self.error is None:
            self.process.communicate()

    def _ask(self):
        answer = "" if self.error else self.process.stdout.readline()
        if not answer and self.error is None:
            self.process.communicate()
            self.complaints.seek(0)
            self.error = (self.complaints.read().strip().splitlines() or ["it ended without a word"])[-1]
        return json.loads(answer) if answer else None


def parse_arguments(
    description: str,
    columns: list[str],
    contenders: list[Contender],
    add_settings: Callable[[argparse.ArgumentParser], None] | None = None,
) -> argparse.Namespace:
    """The arguments that every benchmark has, and its own. A worker's process does its work here and ends.

    Args:
        description: What `--help` says.
        columns: What there is to measure.
        contenders: The contenders.
        add_settings: Function of the parser that adds arguments of the benchmark's own, which need defaults. Defaults
            to `None`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [contender.name for contender in contenders]
    parser.add_argument("--rounds", type=positive, default=5, help="measurements of each (default: 5)")
    parser.add_argument("--columns", nargs="+", choices=columns, default=columns, help="what to measure (default: all)")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME", help=f"of {names}")
    parser.add_argument("--worker", choices=names, help=argparse.SUPPRESS)
    common = vars(parser.parse_known_args([])[0]).keys()
    if add_settings is not None:
        add_settings(parser)
    arguments = parser.parse_args()
    if arguments.worker:
        settings = {name: value for name, value in vars(arguments).items() if name not in common}
        _work(contenders[names.index(arguments.worker)], arguments.columns[0], settings)
        sys.exit()
    return arguments


def positive(text: str) -> int:
    """A positive integer, as the `type` of an argument."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def run(contenders: list[Contender], arguments: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """Measure every contender in every column, one round of each after the other, so that drifts meet all alike.

    Args:
        contenders: The contenders; those that lack a module, or fail, are left out with a line that says so.
        arguments: As from `parse_arguments`.

    Returns:
        The measurements, by column and name. Where there is none at all the program ends.
    """
    present = []
    for contender in (contender for contender in contenders if contender.name in arguments.only):
        missing = [name for name in contender.needs if importlib.util.find_spec(name) is None]
        if missing:
            print(f"{contender.name}: skipped, {', '.join(missing)} is not installed", flush=True)
        else:
            present.append(contender)
    results = {}
    for column in arguments.columns:
        here = [contender for contender in present if contender.columns is None or column in contender.columns]
        results[column] = _run_column(here, column, arguments.rounds)
    if not any(results.values()):
        sys.exit("Nothing was measured.")
    return results


def _run_column(contenders, column, rounds):
    workers = {}
    for contender in contenders:
        _say(f"{column}: preparing {contender.name}")
        workers[contender.name] = Worker(contender, column)
    measured = {name: [] for name in workers}
    for number in range(rounds):
        for name, worker in workers.items():
            _say(f"{column}: round {number + 1} of {rounds}, {name}")
            value = worker.measure()
            if value is not None:
                measured[name].append(value)
    _say("")
    for name, worker in workers.items():
        worker.close()
        if worker.error:
            print(f"{name}: left out of {column}: {worker.error}", flush=True)
    return {name: values for name, values in measured.items() if len(values) == rounds}


def _work(contender, column, settings):
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is not an answer
    measure = contender.prepare(column, **settings)
    print("0", file=answers, flush=True)
    for _ in sys.stdin:
        print(json.dumps(float(measure())), file=answers, flush=True)


def _say(text):
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def print_table(
    results: dict[str, dict[str, list[float]]], ours: str, digits: int = 0, facts: dict | None = None
) -> None:
    """Print medians, their spread, and how many times the others' ours is; then everything as one JSON line.

    Args:
        results: As from `run`.
        ours: Name of the contender that the others are compared with.
        digits: Digits after the point. Defaults to `0`.
        facts: What else stands in the JSON line, by name. Defaults to `None`.
    """
    names = list(dict.fromkeys(name for measured in results.values() for name in measured))
    width = max(map(len, names), default=0)
    print(f"\n{'':{width}}  " + "  ".join(f"{column:^34}" for column in results))
    print(f"{'':{width}}  " + "  ".join(f"{'median':>10} {'least .. most':>16} {'ours x':>6}" for _ in results))
    for name in names:
        cells = []
        for measured in results.values():
            if name not in measured:
                cells.append(" " * 34)
                continue
            values = measured[name]
            middle = statistics.median(values)
            spread = f"{min(values):,.{digits}f} .. {max(values):,.{digits}f}"
            ratio = f"{statistics.median(measured[ours]) / middle:6.2f}" if ours in measured else ""
            cells.append(f"{middle:10,.{digits}f} {spread:>16} {ratio:>6}")
        print(f"{name:{width}}  " + "  ".join(f"{cell:34}" for cell in cells))
    print(json.dumps({**results, **(facts or {})}))


def matrix_peak(size: int = 1024, repeats: int = 20) -> float:
    """float32 multiplications and additions a second, in a product of two square matrices."""
    import time

    import numpy as np

    a, b = np.random.default_rng(0).random((2, size, size), dtype="float32")
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return 2 * size**3 / min(times)
