import keras

from keras_lt.optimizers.smoothed_rms import dense_gradient


@keras.saving.register_keras_serializable(package="keras_lt")
class LossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Keras's loss scaling, which on TensorFlow also sees infinities in the gradients of embeddings.

    Those are sparse, and where an id comes several times Keras looks at the last of its rows alone: a step that should
    be left out would be taken, and the table become NaN. Here rows of one id are summed before. `compile` takes this
    class where Keras would take its own.
    """

    def check_finite(self, grads):
        return super().check_finite([dense_gradient(gradient) for gradient in grads])
