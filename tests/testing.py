"""What the tests share: compile modes, gradients, fresh processes, skip marks. It knows no class of keras_lt."""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import textwrap

import keras
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
BACKEND = keras.backend.backend()

# graph is tf.function without XLA, jit with it
MODES = {"tensorflow": ["eager", "graph", "jit"], "jax": ["eager", "jit"]}.get(BACKEND, ["eager"])

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the folder ../shared is not beside this checkout")
needs_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="about Keras's TensorFlow backend")
needs_jax = pytest.mark.skipif(BACKEND != "jax", reason="about Keras's JAX backend")
needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")


def run(mode, function, *args):
    """Calls `function(*args)` in one of `MODES` and returns its results as NumPy arrays.

    Arrays anywhere in `args` become (traced) tensors; everything else in them stays a Python value. Layers have to be
    built before; what the function assigns to variables is kept on TensorFlow and PyTorch, dropped on JAX.
    """
    arrays = [keras.ops.convert_to_tensor(leaf) for leaf in keras.tree.flatten(args) if hasattr(leaf, "dtype")]
    return to_numpy(compiled(mode, function, args)(arrays))


def gradient(mode, function, inputs, *args):
    """The gradient of the sum of `function(inputs, *args)` for every array in the tree `inputs`, as such a tree."""

    def total(inputs, *args):
        return keras.ops.sum(keras.ops.cast(function(inputs, *args), "float32"))

    if BACKEND == "jax":
        import jax

        return run(mode, jax.grad(total), inputs, *args)
    return run(mode, lambda inputs, *args: _backend_gradient(total, inputs, *args), inputs, *args)


def weight_gradient(mode, layer, function, *args):
    """The gradient of the sum of `function(*args)` for the trainable weights of `layer`: a list in their order."""
    variables = layer.trainable_variables

    def function_of_weights(values, *args):
        with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
            return function(*args)

    return gradient(mode, function_of_weights, [to_numpy(variable.value) for variable in variables], *args)


def assert_close(actual, expected, tolerance=1e-6):
    """Compares two arrays or trees of arrays, shapes and NaNs included, by an absolute plus a relative tolerance."""
    actual, expected = to_numpy(actual), to_numpy(expected)
    keras.tree.assert_same_structure(actual, expected)
    for one, other in zip(keras.tree.flatten(actual), keras.tree.flatten(expected), strict=True):
        assert np.shape(one) == np.shape(other), f"shapes {np.shape(one)} and {np.shape(other)} differ"
        one, other = (np.asarray(array).astype("float64") for array in (one, other))
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


def fresh_process(code, *arguments, cwd=None, timeout=600, **env):
    """Runs Python code in a new process with the same Keras backend and this checkout on its path; returns its stdout.

    Keywords in capitals are environment variables (None removes one). A failure raises with the process's stderr.
    """
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    settings = {"KERAS_BACKEND": BACKEND, "PYTHONPATH": path, "TF_CPP_MIN_LOG_LEVEL": "3", **env}
    environment = {key: value for key, value in {**os.environ, **settings}.items() if value is not None}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    result = subprocess.run(
        command, cwd=cwd, env=environment, timeout=timeout, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if result.returncode:
        raise RuntimeError(f"the process exited with {result.returncode}\n{result.stdout}\n{result.stderr}")
    return result.stdout


def readme_blocks(language):
    """The README's fenced blocks in one language ("" for none), in their order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [body for name, body in re.findall(r"^```(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE) if name == language]


def shell_commands(block):
    """The commands of a bash block, one a line or joined by `&&`, without comments."""
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    parts = [part.strip() for line in lines for part in re.sub(r"(^|\s)#.*", "", line).split("&&")]
    return [part for part in parts if part]


def to_numpy(tree):
    """The tree with NumPy arrays for its tensors."""
    convert = keras.ops.convert_to_numpy
    return keras.tree.map_structure(lambda leaf: convert(leaf) if hasattr(leaf, "dtype") else leaf, tree)


def compiled(mode, function, args):
    """A function of the arrays in `args`, in order; the other leaves of `args` are closed over."""

    def call(arrays):
        arrays = iter(arrays)
        leaves = [next(arrays) if hasattr(leaf, "dtype") else leaf for leaf in keras.tree.flatten(args)]
        return function(*keras.tree.pack_sequence_as(args, leaves))

    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; on {BACKEND} it is one of {MODES}")
    if BACKEND == "jax":
        import jax

        def call_stateless(arrays):
            with keras.StatelessScope():
                return call(arrays)

        return jax.jit(call_stateless) if mode == "jit" else call_stateless
    if mode == "eager":
        return call
    import tensorflow as tf

    return tf.function(call, jit_compile=mode == "jit")


def _backend_gradient(total, inputs, *args):
    leaves = keras.tree.flatten(inputs)
    if BACKEND == "torch":
        leaves = [leaf.detach().requires_grad_() for leaf in leaves]
        total(keras.tree.pack_sequence_as(inputs, leaves), *args).backward()
        gradients = [keras.ops.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]
    else:
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(leaves)
            value = total(inputs, *args)
        gradients = tape.gradient(value, leaves, unconnected_gradients=tf.UnconnectedGradients.ZERO)
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    return keras.tree.pack_sequence_as(inputs, gradients)
