"""Makes `model_testing.py` importable from the test files beside it, as `tests/conftest.py` does with `testing.py`."""

import importlib.util
import pathlib
import sys

spec = importlib.util.spec_from_file_location("model_testing", pathlib.Path(__file__).with_name("model_testing.py"))
sys.modules["model_testing"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["model_testing"])
