"""A run of `train_text.py` that is killed goes on where its last checkpoint was, and ends as one that was not."""

import os
import pathlib
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np

from testing import BACKEND, ROOT

STEPS = "60"


def start(text, output):
    command = [sys.executable, str(ROOT / "examples" / "train_text.py"), "--data", str(text), "--batch-size", "3"]
    command += ["--steps", STEPS, "--sample", "0", "--output", str(output)]
    environment = {**os.environ, "KERAS_BACKEND": BACKEND, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def weights(folder):
    """What a `.keras` file holds, read without Keras."""
    import h5py

    with zipfile.ZipFile(folder / "model.keras") as archive, archive.open("model.weights.h5") as file:
        found = {}
        h5py.File(file).visititems(
            lambda name, item: found.update({name: np.asarray(item)}) if isinstance(item, h5py.Dataset) else None
        )
        return found


def test_killed_run_ends_as_an_unbroken_one(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("".join(np.random.default_rng(0).choice(list("abcde \n"), 3000)))
    unbroken = start(text, tmp_path / "unbroken")
    printed, _ = unbroken.communicate(timeout=300)
    assert unbroken.returncode == 0, printed
    assert "validation loss" in printed

    killed = start(text, tmp_path / "killed")
    checkpoint = pathlib.Path(tmp_path / "killed" / "model.keras")
    deadline = time.monotonic() + 300
    while not checkpoint.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert killed.returncode == -signal.SIGKILL, "the run was over before it could be killed"

    again = start(text, tmp_path / "killed")
    printed, _ = again.communicate(timeout=300)
    assert again.returncode == 0, printed
    assert f" of {STEPS} steps done" in printed
    assert f" 0 of {STEPS} steps done" not in printed
    one, other = weights(tmp_path / "unbroken"), weights(tmp_path / "killed")
    assert one.keys() == other.keys()
    assert len(one) > 60  # the weights and the optimizer's two averages of each
    for name, value in one.items():
        np.testing.assert_array_equal(value, other[name], err_msg=name)
