"""Makes `generation_testing.py` importable from the test files beside it, as for `testing.py`."""

import importlib.util
import pathlib
import sys

import pytest

name = "generation_testing"
spec = importlib.util.spec_from_file_location(name, pathlib.Path(__file__).with_name(f"{name}.py"))
sys.modules[name] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules[name])


@pytest.fixture
def without_xla(monkeypatch):
    """As under a strategy of several replicas on TensorFlow, whose graphs are compiled in less time."""
    monkeypatch.setattr("keras_lt.backend.compilation.prefers_jit", lambda: "auto")
