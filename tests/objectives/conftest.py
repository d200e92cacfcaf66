import sys

import pytest


@pytest.fixture(params=["tf.data", "PyDataset"])
def kind(request, monkeypatch):
    """Runs a test with TensorFlow, and as if it were not installed."""
    if request.param == "PyDataset":
        monkeypatch.setitem(sys.modules, "tensorflow", None)
    else:
        pytest.importorskip("tensorflow")
    return request.param


@pytest.fixture
def no_tensorflow(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow", None)
