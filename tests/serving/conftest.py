"""Makes `tests/models/model_testing.py` importable from the test files beside it."""

import importlib.util
import pathlib
import sys

if "model_testing" not in sys.modules:
    path = pathlib.Path(__file__).parent.with_name("models") / "model_testing.py"
    spec = importlib.util.spec_from_file_location("model_testing", path)
    sys.modules["model_testing"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["model_testing"])
