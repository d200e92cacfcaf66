"""What `steps_per_execution="auto"` means: how many training steps of a `fit` run at a time without anyone noticing.

Progress bars, `stop_training` and Ctrl-C wait for the end of a group: one takes about half a second at most.
"""

import math

import keras

from keras_lt.backend import has_accelerator

_MOST_STEPS = 16
_SECONDS = 0.5
_MOST_BYTES = 2**26
# Guesses: seconds that a step takes however little it has to do, and multiplications and additions a second.
_LEAST_SECONDS = 0.004
_SPEED, _ACCELERATOR_SPEED = 2e11, 5e12
_USUAL_BATCH_SIZE = 32
_BATCH_HOOKS = ("on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end")


def automatic_steps(products_per_row, x, batch_size=None, callbacks=None, steps_per_epoch=None, validation_split=0.0):
    """Number of steps to run at a time.

    Args:
        products_per_row: Function of the shape of a row, with `None` for what is not known, that gives about how many
            multiplications the forward pass of that row takes, or `None` if that is not known.
        x, batch_size, callbacks, steps_per_epoch, validation_split: As given to `fit`.

    Returns:
        An integer, 1 wherever someone could notice: a callback that looks at batches, or data of unknown length.
    """
    if any(map(_watches_batches, _flat(callbacks))):
        return 1
    shape, num_batches = _batches(x, batch_size, steps_per_epoch, validation_split)
    steps_in_epoch = steps_per_epoch or num_batches
    products = products_per_row(shape[1:]) if shape else None
    if not steps_in_epoch or not products:
        return 1
    num_rows = shape[0] or _USUAL_BATCH_SIZE
    # A backward pass takes twice the products of a forward pass, and each comes with an addition.
    seconds = _LEAST_SECONDS + 6 * products * num_rows / (_ACCELERATOR_SPEED if has_accelerator() else _SPEED)
    num_bytes = 4 * num_rows * math.prod(size or 1 for size in shape[1:])
    most = int(min(_MOST_STEPS, _SECONDS // seconds, _MOST_BYTES // num_bytes, steps_in_epoch))
    if most < 2:
        return 1
    # A progress bar counts whole groups: the last one should go beyond the end as little as can be.
    steps = min(range(most, most // 2, -1), key=lambda steps: -steps_in_epoch % steps)
    # Keras, too, counts whole groups on its way through data that is longer than an epoch.
    return 1 if steps_per_epoch and num_batches and steps_per_epoch % steps else steps


def _flat(callbacks):
    callbacks = getattr(callbacks, "callbacks", callbacks)
    return [] if callbacks is None else keras.tree.flatten(callbacks)


def _watches_batches(callback):
    if isinstance(callback, keras.callbacks.ProgbarLogger) or getattr(callback, "save_freq", None) == "epoch":
        return False
    own = keras.callbacks.Callback
    return any(getattr(getattr(callback, hook), "__func__", None) is not getattr(own, hook) for hook in _BATCH_HOOKS)


def _batches(x, batch_size, steps_per_epoch, validation_split):
    """The shape of a batch, `None` standing for what is not known, and the number of batches, or `None`."""
    if hasattr(x, "element_spec"):  # tf.data
        num_batches = int(x.cardinality())
        leaf = _first(x.element_spec)
        return _known_shape(leaf), num_batches if num_batches >= 0 else None
    if isinstance(x, keras.utils.PyDataset):
        return (None, None), x.num_batches
    leaf = _first(x)
    if not hasattr(leaf, "shape") or len(leaf.shape) == 0:
        return None, None
    num_rows = int(leaf.shape[0] * (1 - validation_split))
    batch_size = batch_size or (math.ceil(num_rows / steps_per_epoch) if steps_per_epoch else _USUAL_BATCH_SIZE)
    return (batch_size, *leaf.shape[1:]), math.ceil(num_rows / batch_size)


def _known_shape(spec):
    """The shape of a tensor of tf.data, or `None` if not even its rank is known."""
    return None if spec.shape.rank is None else tuple(spec.shape)


def _first(tree):
    return next((leaf for leaf in keras.tree.flatten(tree) if leaf is not None), None)
