import keras


def prefers_jit():
    """What `jit_compile="auto"` means for a language model: whether its steps are compiled by XLA.

    Keras leaves XLA off on TensorFlow without a GPU, where it makes small sequence models about 1.5 times as fast.
    Under a strategy of several replicas, and on the other backends, the decision is left to Keras.

    Returns:
        `True`, or `"auto"` for Keras's own choice.
    """
    return True if is_single_tensorflow_device() else "auto"


def is_single_tensorflow_device():
    """Whether the backend is TensorFlow, without a strategy that spreads the work over several replicas."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return tf.distribute.get_strategy().num_replicas_in_sync == 1


def has_accelerator():
    """Whether the backend computes on something else than a CPU."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return bool(tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("TPU"))
    if backend == "jax":
        import jax

        return jax.default_backend() != "cpu"
    import torch

    return torch.cuda.is_available()


def is_tracing():
    """Whether a `tf.function` is being traced; on other backends only the tensors know, see `is_concrete`."""
    if keras.backend.backend() != "tensorflow":
        return False
    import tensorflow as tf

    return not tf.executing_eagerly()


def compile_function(function, variables):
    """Turn a function of tensors into one that the backend has compiled for the shapes of its arguments.

    On TensorFlow it is compiled by XLA wherever `prefers_jit` says so, on JAX always; PyTorch runs it as it is, without
    gradients. The function is traced once for each set of shapes, with the variables' values read at every call.

    Args:
        function: Function of trees of tensors. What it assigns to variables is lost.
        variables: List of `keras.Variable`: all that the function reads.

    Returns:
        A function with the same arguments.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=prefers_jit() is True, autograph=False)
    if backend == "jax":
        import jax

        @jax.jit
        def compiled(values, *args):
            with keras.StatelessScope(state_mapping=list(zip(variables, values, strict=True))):
                return function(*args)

        return lambda *args: compiled([variable.value for variable in variables], *args)
    import torch

    return torch.no_grad()(function)
