"""Makes `tests/testing.py` importable as `testing` from every test file.

`tests/` itself stays off the path: its folders `tokenizers` and `datasets` would answer there for libraries of those
names that are not installed.
"""

import importlib.util
import os
import pathlib
import sys

# Most of the tests' time is compilation of programs that run once: XLA optimizes them as always, LLVM does not.
os.environ["XLA_FLAGS"] = f"--xla_backend_optimization_level=0 {os.environ.get('XLA_FLAGS', '')}".strip()

spec = importlib.util.spec_from_file_location("testing", pathlib.Path(__file__).with_name("testing.py"))
sys.modules["testing"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["testing"])


def pytest_configure(config):
    # pytest-xdist would begin with the files of many tests and end with one process alone on a file of few, long ones.
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False
