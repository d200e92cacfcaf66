import keras
from keras import ops

from keras_lt.backend import implicit_mask
from keras_lt.ops.cross_entropy import cross_entropy
from keras_lt.ops.token_weights import token_weights


@keras.saving.register_keras_serializable(package="keras_lt")
class TokenCrossentropy(keras.losses.Loss):
    """Cross-entropy of logits against ids, in nats: the mean over the real tokens of a batch.

    `loss = sum(w * -log softmax(logits)[id]) / sum(w)`, where the weight `w` of a token is the product of Keras's
    implicit padding mask and the sample weight. Padding and weight 0 drop out entirely: they change neither the sum
    nor the count, whatever id stands there. An id out of range that does count makes the loss NaN.

    Args:
        reduction: String. How token losses become one number; see `keras.losses.Loss`. Defaults to
            `"mean_with_sample_weight"`, the mean over real tokens.
        name: String. Defaults to `"token_crossentropy"`.
        dtype: Dtype of the computation, one that holds the ids: not float16 or bfloat16. Defaults to `"float32"`,
            whatever `keras.config.floatx()` is.

    Call arguments:
        y_true: Integer ids of shape `(B, T)`.
        y_pred: Logits of shape `(B, T, V)`.
        sample_weight: Optional weights of shape `(B,)` or `(B, T)`.

    Example:

    >>> loss = keras_lt.losses.TokenCrossentropy()
    >>> float(loss([[2, 0]], np.zeros((1, 2, 4)), sample_weight=[[1, 0]]))  # log(4)
    1.3862943649291992

    Source: S3, `loss`.
    """

    def __init__(self, reduction="mean_with_sample_weight", name="token_crossentropy", dtype="float32"):
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if self.dtype in ("float16", "bfloat16"):
            raise ValueError(f"`dtype` must hold the ids: float32 or float64. Received: dtype={dtype}")

    def __call__(self, y_true, y_pred, sample_weight=None):
        y_true = ops.convert_to_tensor(y_true)
        weights = token_weights(y_true, implicit_mask(y_pred), sample_weight)
        if weights is not None:
            y_true = ops.where(weights != 0, y_true, 0)
        return super().__call__(y_true, y_pred, weights)

    def call(self, y_true, y_pred):
        return cross_entropy(y_pred, y_true)

    def get_config(self):
        return {**super().get_config(), "dtype": self.dtype}
