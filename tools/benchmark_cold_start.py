"""Measure seconds from the start of a process to the end of its first training step, at little size.

python tools/benchmark_cold_start.py      # ten minutes on two CPU cores
python tools/benchmark_cold_start.py --rounds 2 --columns "1 step" --only "keras_lt (TF)" "keras-hub (TF)"

Every measurement is a fresh process that runs a script as a user would write it: import, make the model (2 layers,
width 32), compile, and train on one batch (column `1 step`) or on 64 batches (`64 steps`) of 32 windows of 64 ids,
given as arrays. The clock runs outside, from before the process starts until it says that `fit`, or the loop, is done.
The third column is the import alone, the start of Python included. One process ran before, so that the files are in
memory. keras_lt is compiled with `compile()` and nothing else. "warm cache" keeps what JAX has compiled on disk, which
is an environment variable: JAX_COMPILATION_CACHE_DIR.

Prints a table (`ours x` above 1: keras_lt is slower), then one JSON line.
"""

import atexit
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import benchmarking
from benchmarking import Contender

STEPS = {"1 step": 1, "64 steps": 64}
COLUMNS = [*STEPS, "import"]

DATA = """
import numpy as np

ids = np.random.default_rng(0).integers(65, size=({rows}, 65), dtype="int32")
x, y = ids[:, :-1], ids[:, 1:]
"""
KERAS_LT = """
import keras_lt

model = keras_lt.models.LittleTransformer(**keras_lt.models.presets.LITTLE)
model.compile()
model.fit(x, y, batch_size=32, verbose=0)
"""
KERAS_HUB = """
from peers import keras_hub_gpt

model = keras_hub_gpt.make_model(65, 64, 2, 4, 32, "relu")
keras_hub_gpt.compile_model(model)
model.fit(x, y, batch_size=32, verbose=0)
"""
PYTORCH = """
from peers import torch_gpt

model = torch_gpt.module_classes()[1](65, 64, 2, 4, 32, "relu")
torch_gpt.make_training(model)(x.reshape(-1, 32, 64), y.reshape(-1, 32, 64))
"""


def seconds_to_answer(script: str, **environment: str) -> float:
    """Seconds from before a fresh process is started until it has run the script."""
    path = os.pathsep.join(filter(None, [str(pathlib.Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", f"{script}\nprint('done', flush=True)"]
    start = time.perf_counter()
    with subprocess.Popen(
        command, env={**os.environ, "PYTHONPATH": path, **environment}, stdout=subprocess.PIPE, text=True
    ) as process:
        answered = any(line == "done\n" for line in process.stdout)
        seconds = time.perf_counter() - start
    if not answered:
        raise RuntimeError(f"the script ended with {process.returncode}")
    return seconds


def make_contender(name: str, module: str, script: str | None, backend: str, *needs: str, cache: bool = False):
    """A contender: a script for the columns of steps, and the module that it imports; no script, no such columns."""

    def prepare(column: str) -> Callable[[], float]:
        code = f"import {module}" if column == "import" else DATA.format(rows=32 * STEPS[column]) + script
        environment = {}
        if cache:
            folder = tempfile.TemporaryDirectory()
            atexit.register(folder.cleanup)  # which also holds it until then
            environment = {
                "JAX_COMPILATION_CACHE_DIR": folder.name,
                "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
                "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
            }
        seconds_to_answer(code, **environment)
        return lambda: seconds_to_answer(code, **environment)

    columns = ((*STEPS,) if script else ()) + (() if cache else ("import",))
    return Contender(name, prepare, backend, (backend, *needs), columns)


CONTENDERS = [
    make_contender("keras_lt (TF)", "keras_lt", KERAS_LT, "tensorflow"),
    make_contender("keras_lt (JAX)", "keras_lt", KERAS_LT, "jax"),
    make_contender("keras_lt (JAX, warm cache)", "keras_lt", KERAS_LT, "jax", cache=True),
    make_contender("keras-hub (TF)", "keras_hub", KERAS_HUB, "tensorflow", "keras_hub"),
    make_contender("keras-hub (JAX)", "keras_hub", KERAS_HUB, "jax", "keras_hub"),
    make_contender("keras-hub (JAX, warm cache)", "keras_hub", KERAS_HUB, "jax", "keras_hub", cache=True),
    make_contender("keras (TF)", "keras", None, "tensorflow"),
    make_contender("keras (JAX)", "keras", None, "jax"),
    make_contender("PyTorch", "torch", PYTORCH, "torch"),
]


def main() -> None:
    arguments = benchmarking.parse_arguments(__doc__, COLUMNS, CONTENDERS)
    results = benchmarking.run(CONTENDERS, arguments)
    print("\nseconds")
    benchmarking.print_table(results, "keras_lt (TF)", 2)


if __name__ == "__main__":
    main()
