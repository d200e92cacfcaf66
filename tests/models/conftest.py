"""Makes the modules that the tests of the models share importable from them, as `tests/conftest.py` does `testing`."""

import importlib.util
import pathlib
import sys

for name in ("model_equations", "model_testing", "seq2seq_testing"):
    spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).with_name(f"{name}.py"))
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
