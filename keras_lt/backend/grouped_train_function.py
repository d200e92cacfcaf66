"""Groups of training steps as one compiled program."""

import keras
import numpy as np


def can_group(model):
    """Whether the training steps of a compiled model can be run in groups, as `GroupedTrainFunction` does it.

    Not where no program of XLA runs them (where Keras's own loop takes as little time), where a strategy or a
    distribution has a say, or where a class of the user's has a `train_step` or `compute_metrics` of its own, whose
    results would be lost: only what the metrics hold comes out of a group.

    Args:
        model: `keras.Model` that has been compiled.

    Returns:
        A boolean.
    """
    methods = (type(model).train_step, type(model).compute_metrics)
    is_known = all(method.__module__.split(".")[0] in ("keras", "keras_lt") for method in methods)
    if model.run_eagerly or not model.jit_compile or not is_known:
        return False
    backend = keras.backend.backend()
    if backend == "tensorflow":
        return model.distribute_strategy.num_replicas_in_sync == 1
    return backend == "jax" and keras.distribution.distribution() is None


class GroupedTrainFunction:
    """Stands for Keras's train function: takes several batches, and runs their training steps in one program.

    The batches are stacked, filled up to `size`, and a loop in the program runs as many steps as there are batches: one
    program for every number, and the same results as step by step. Batches of different shapes are not stacked
    together.

    Args:
        model: Compiled `keras.Model` for which `can_group` holds.
        size: Integer. Number of batches that a program has room for.
    """

    def __init__(self, model, size):
        self.size = size
        self.most = size
        self.steps_per_epoch = None
        self._left = None
        is_jax = keras.backend.backend() == "jax"
        self._run = _jax_program(model) if is_jax else _tensorflow_program(model)

    def begin(self, most, steps_per_epoch=None):
        """Say how many steps a call runs at most, and how many an epoch has if the data does not say so."""
        self.most = min(most, self.size)
        self.steps_per_epoch = self._left = steps_per_epoch

    def __call__(self, *state_and_iterator):
        """Run the next steps; takes and returns what the train function of the backend does."""
        *state, iterator = state_and_iterator
        batches = self._take(iter(iterator))
        while batches:
            group = list(_of_one_shape(batches))
            batches = batches[len(group) :]
            outputs = self._run(*state, _stack(group, self.size), np.int32(len(group)))
            state = list(outputs[1:])
        return outputs if state else outputs[0]

    def _take(self, iterator):
        number = self.most if self._left is None else min(self.most, self._left)
        batches = [batch for _, batch in zip(range(number), iterator, strict=False)]
        if self._left is not None:
            is_over = len(batches) < number or self._left == number
            self._left = self.steps_per_epoch if is_over else self._left - number
        if not batches:
            raise StopIteration
        return batches


def _of_one_shape(batches):
    """The first batches, as long as all have one structure and shape."""
    first = keras.tree.map_structure(_shape, batches[0])
    for batch in batches:
        if keras.tree.map_structure(_shape, batch) != first:
            return
        yield batch


def _shape(x):
    return None if _is_nothing(x) else tuple(x.shape)


def _is_nothing(x):
    """Whether something stands for `None` in a batch; tf.data has an object for it."""
    return x is None or not hasattr(x, "shape")


def _stack(batches, size):
    batches = batches + batches[-1:] * (size - len(batches))

    def stack(*parts):
        if _is_nothing(parts[0]):
            return None
        if all(isinstance(part, np.ndarray) for part in parts):
            return np.stack(parts)
        return keras.ops.stack(parts)

    return keras.tree.map_structure(stack, *batches)


def _at(batches, index):
    return keras.tree.map_structure(lambda x: None if x is None else x[index], batches)


def _tensorflow_program(model):
    import tensorflow as tf

    @tf.function(jit_compile=True, reduce_retracing=True, autograph=False)
    def program(batches, number):
        def step(index):
            model.train_step(_at(batches, index))
            return index + 1

        tf.while_loop(lambda index: index < number, step, [tf.constant(0)], parallel_iterations=1)
        return model.get_metrics_result()

    return lambda batches, number: (program(batches, tf.constant(number)),)


def _jax_program(model):
    import jax

    def program(state, batches, number):
        state = jax.lax.fori_loop(0, number, lambda n, state: model.train_step(state, _at(batches, n))[1], state)
        with keras.StatelessScope(state_mapping=list(zip(model.metrics_variables, state[3], strict=True))):
            return model.get_metrics_result(), state

    return jax.jit(program, donate_argnums=0)
