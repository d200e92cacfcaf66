"""Makes `layer_testing.py` importable from the test files beside it, as `tests/conftest.py` does with `testing.py`."""

import importlib.util
import pathlib
import sys

spec = importlib.util.spec_from_file_location("layer_testing", pathlib.Path(__file__).with_name("layer_testing.py"))
sys.modules["layer_testing"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["layer_testing"])
