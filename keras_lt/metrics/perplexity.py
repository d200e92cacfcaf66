import keras
from keras import ops

from keras_lt.backend import implicit_mask
from keras_lt.ops.cross_entropy import cross_entropy
from keras_lt.ops.token_weights import token_weights


@keras.saving.register_keras_serializable(package="keras_lt")
class Perplexity(keras.metrics.Metric):
    """The perplexity of logits against ids: `exp(sum(w * -log p) / sum(w))` over every token since the last reset.

    It keeps the two sums, so that the result over an epoch is exact however the batches fall, where Keras's epoch
    `loss` is a mean of batch means. Padding (Keras's implicit mask) and weight 0 do not count; in a model of one's own
    on JAX, whose training step in Keras loses that mask, give it as sample weights. The cross-entropy is computed by
    the operations the loss uses on the same tensors: in one compiled step they are computed once.

    Args:
        name: String. Defaults to `"perplexity"`.
        dtype: Dtype of the sums. Defaults to `"float32"`.

    Example:

    >>> metric = keras_lt.metrics.Perplexity()
    >>> metric.update_state([[2, 0]], np.zeros((1, 2, 4)))
    >>> float(metric.result())
    4.0

    Source: S3, `loss`.
    """

    def __init__(self, name="perplexity", dtype="float32"):
        super().__init__(name=name, dtype=dtype)
        self.negative_log_likelihood = self.add_variable((), "zeros", name="negative_log_likelihood")
        self.token_count = self.add_variable((), "zeros", name="token_count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_true = ops.convert_to_tensor(y_true)
        weights = token_weights(y_true, implicit_mask(y_pred), sample_weight)
        if weights is None:
            weights = ops.ones(ops.shape(y_true), self.dtype)
        weights = ops.cast(weights, self.dtype)
        losses = cross_entropy(y_pred, ops.where(weights != 0, y_true, 0))
        self.negative_log_likelihood.assign_add(ops.sum(ops.cast(losses, self.dtype) * weights))
        self.token_count.assign_add(ops.sum(weights))

    def result(self):
        return ops.exp(ops.divide_no_nan(self.negative_log_likelihood, self.token_count))

    def reset_state(self):
        self.negative_log_likelihood.assign(0.0)
        self.token_count.assign(0.0)
