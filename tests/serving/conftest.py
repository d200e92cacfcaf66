"""Makes the modules in `tests/models/` that these tests need, too, importable from the test files beside it."""

import importlib.util
import pathlib
import sys

for name in ("model_testing", "seq2seq_testing"):
    if name not in sys.modules:
        path = pathlib.Path(__file__).parent.with_name("models") / f"{name}.py"
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
