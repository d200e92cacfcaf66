import numbers

import keras
from keras import ops

from keras_lt.backend.replicas import sum_on_first_replica
from keras_lt.ops.smoothing import smooth

# The smallest normal float32: below it compiled code may read epsilon as 0, and a zero gradient would give 0 / 0.
SMALLEST_EPSILON = 2.0**-126


@keras.saving.register_keras_serializable(package="keras_lt")
class SmoothedRMS(keras.optimizers.Optimizer):
    """RMS update with a smoothed gradient, as in The Little Learner.

    For a weight `p` with gradient `g`, from `r = v = 0`, one step is

    ```
    r = smooth(beta, r, g**2)
    v = smooth(mu, v, g)
    a = learning_rate / (sqrt(r) + epsilon)
    p = p - a * v
    ```

    where `smooth(decay, average, g) = decay * average + (1 - decay) * g`. Nothing corrects `r` and `v` for their start
    at zero: a first step is `learning_rate * (1 - mu) / sqrt(1 - beta)` long, whatever the size of the gradient.

    Args:
        learning_rate: Float, a `keras.optimizers.schedules.LearningRateSchedule` or a callable without arguments.
            Defaults to `0.01`.
        beta: Float in [0, 1). The decay of `r`, the average of the squared gradient. Defaults to `0.9`.
        mu: Float in [0, 1). The decay of `v`, the average of the gradient. Defaults to `0.9`.
        epsilon: Float, at least `2**-126`. Keeps the division finite where `r` is zero; a weight whose gradient has
            always been zero takes a zero step. Defaults to `1e-8`.
        **kwargs: The options of `keras.optimizers.Optimizer`: `weight_decay`, `clipnorm`, `clipvalue`,
            `global_clipnorm`, `use_ema`, `ema_momentum`, `ema_overwrite_frequency`, `loss_scale_factor`,
            `gradient_accumulation_steps` and `name`.

    The rule moves every row of a table, also the rows whose ids are not in the batch, as long as their `v` is not zero.
    A sparse gradient (`tf.IndexedSlices`) is therefore made dense first, its repeated ids summed, and every option
    then gives what it gives for a dense gradient.

    float16 and bfloat16 weights are updated in float32: the gradient is cast up before it is unscaled, accumulated,
    clipped and squared, `r`, `v` and the accumulated gradient are kept in float32, and the new weight is rounded once.
    Weight decay and the moving average of the weights (`use_ema`) are Keras's own and run in the weight's dtype, where
    small changes round away.

    With `gradient_accumulation_steps=k` a learning rate schedule counts every batch, not every `k`-th.

    Under `tf.distribute.MirroredStrategy`, plain steps, `weight_decay`, `use_ema`, `loss_scale_factor`, `clipnorm`,
    `clipvalue` and `global_clipnorm` give the weights that one device gives. For the last three the gradients are
    summed over the replicas before Keras clips them; Keras alone clips those of each replica. TensorFlow refuses
    `gradient_accumulation_steps` and `ema_overwrite_frequency` with an error about `merge_call`, as it does for every
    Keras optimizer.

    Example:

    ```python
    model.compile(optimizer=keras_lt.optimizers.SmoothedRMS(0.01, clipnorm=1.0), loss="mse")
    ```

    Source: S3, `update`. S3 leaves `beta`, `mu` and `epsilon` open; the defaults are ours.
    """

    def __init__(self, learning_rate=0.01, beta=0.9, mu=0.9, epsilon=1e-8, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta = beta
        self.mu = mu
        self.epsilon = epsilon
        for name, decay in (("beta", beta), ("mu", mu)):
            if not isinstance(decay, numbers.Real) or not 0 <= decay < 1:
                raise ValueError(
                    f"`{name}` is the share of an old average that is kept: it must be a number with "
                    f"0 <= {name} < 1. Received: {name}={decay!r}. Use 0 for no smoothing, 0.9 for the default."
                )
        if not isinstance(epsilon, numbers.Real) or not SMALLEST_EPSILON <= epsilon < float("inf"):
            raise ValueError(
                f"`epsilon` must be a finite number, at least {SMALLEST_EPSILON:.3g} (the smallest normal float32), "
                f"so that nothing is divided by zero. Received: epsilon={epsilon!r}. Use 1e-8 for the default."
            )

    def add_variable(self, shape, initializer="zeros", dtype=None, aggregation="none", layout=None, name=None):
        # Keras copies its moving averages into the weights without a cast, so they alone keep the weights' dtype.
        if dtype is not None and not str(name).endswith("_average"):
            dtype = _update_dtype(dtype)
        return super().add_variable(shape, initializer, dtype, aggregation, layout, name)

    def build(self, variables):
        if self.built:
            return
        super().build(variables)
        self._smoothed_squares, self._smoothed_gradients = self.add_optimizer_variables(
            variables, ["smoothed_square", "smoothed_gradient"]
        )

    def apply(self, grads, trainable_variables=None):
        grads = [dense_gradient(gradient, wide=True) for gradient in grads]
        if self.clipnorm or self.clipvalue or self.global_clipnorm:
            grads = sum_on_first_replica(grads)
        super().apply(grads, trainable_variables)

    def update_step(self, gradient, variable, learning_rate):
        index = self._get_variable_index(variable)
        r, v = self._smoothed_squares[index], self._smoothed_gradients[index]
        gradient = ops.cast(gradient, r.dtype)
        learning_rate = ops.cast(learning_rate, r.dtype)

        self.assign(r, smooth(self.beta, r, ops.square(gradient)))
        self.assign(v, smooth(self.mu, v, gradient))
        rate = ops.divide(learning_rate, ops.add(ops.sqrt(r), self.epsilon))
        self.assign(variable, ops.subtract(ops.cast(variable, r.dtype), ops.multiply(rate, v)))

    def get_config(self):
        config = super().get_config()
        config.update({"beta": self.beta, "mu": self.mu, "epsilon": self.epsilon})
        return config


def _update_dtype(dtype):
    dtype = keras.backend.standardize_dtype(dtype)
    return "float32" if dtype in ("float16", "bfloat16") else dtype


def dense_gradient(gradient, wide=False):
    """The gradient as one tensor, `None` for `None`; `wide` in the dtype that weights are updated in."""
    if gradient is None:
        return None
    is_sparse = hasattr(gradient, "dense_shape")
    if not is_sparse:
        gradient = ops.convert_to_tensor(gradient)
    if wide:
        gradient = ops.cast(gradient, _update_dtype(gradient.dtype))
    # tf.IndexedSlices: TensorFlow turns it into one tensor, repeated ids summed, where it meets a number.
    return ops.add(gradient, 0) if is_sparse else gradient
