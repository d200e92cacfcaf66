import keras

from keras_lt.backend import prefers_jit, with_implicit_mask
from keras_lt.generation.generative_mixin import GenerativeMixin
from keras_lt.layers.composite_layer import QuantizableMixin
from keras_lt.losses import TokenCrossentropy
from keras_lt.metrics import Perplexity
from keras_lt.optimizers import SmoothedRMS


class LanguageModel(GenerativeMixin, QuantizableMixin, keras.Model):
    """Base of the models that turn token ids into logits: what `compile()` and `export()` mean by default."""

    def compile(
        self,
        optimizer="auto",
        loss="auto",
        loss_weights=None,
        metrics=None,
        weighted_metrics=None,
        run_eagerly=False,
        steps_per_execution="auto",
        jit_compile="auto",
        auto_scale_loss=True,
    ):
        """Configure the model for training; see `keras.Model.compile`.

        Args:
            optimizer: Optimizer. Defaults to `"auto"`, that is `SmoothedRMS()`, the sources' update.
            loss: Loss. Defaults to `"auto"`, that is `TokenCrossentropy()`: the mean over the real tokens.
            loss_weights: As in Keras.
            metrics: As in Keras.
            weighted_metrics: As in Keras; `"auto"` is `[Perplexity()]`.
            run_eagerly: As in Keras.
            steps_per_execution: Number of batches a compiled call runs. Defaults to `"auto"`, that is 1.
            jit_compile: Whether XLA compiles the steps. Defaults to `"auto"`: on TensorFlow yes, unless a strategy
                has several replicas; elsewhere Keras decides.
            auto_scale_loss: As in Keras.
        """
        self._jit_compile_asked = jit_compile
        super().compile(
            optimizer=SmoothedRMS() if optimizer == "auto" else optimizer,
            loss=TokenCrossentropy() if loss == "auto" else loss,
            loss_weights=loss_weights,
            metrics=metrics,
            weighted_metrics=[Perplexity()] if weighted_metrics == "auto" else weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=1 if steps_per_execution == "auto" else steps_per_execution,
            jit_compile=prefers_jit() if jit_compile == "auto" and not run_eagerly else jit_compile,
            auto_scale_loss=auto_scale_loss,
        )
        # Not in the first step: should that fail, TensorFlow would let no later one make the optimizer's variables.
        if self.optimizer is not None and self.built:
            self.optimizer.build(self.trainable_variables)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        # Keras on JAX runs `call` alone, and so never asks `compute_mask`.
        y_pred = with_implicit_mask(y_pred, None if x is None else self.compute_mask(x))
        return super().compute_loss(x, y, y_pred, sample_weight, training=training)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        y_pred = with_implicit_mask(y_pred, self.compute_mask(x))
        return super().compute_metrics(x, y, y_pred, sample_weight=sample_weight)

    def get_compile_config(self):
        config = super().get_compile_config()
        # What "auto" meant on this machine need not be right on the one that loads the model.
        return {**config, "jit_compile": self._jit_compile_asked} if config else config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))

    def export(self, filepath, format="tf_saved_model", verbose=None, input_signature=None, **kwargs):
        """Write the model for inference; see `keras.Model.export`.

        Args:
            filepath: As in Keras.
            format: As in Keras.
            verbose: As in Keras.
            input_signature: As in Keras. Defaults to `None`, that is `token_ids`, int32 of any batch and length.
            **kwargs: As in Keras.

        Raises:
            ValueError: If the model does not come out right in that format: half precision is for `"tf_saved_model"`,
                quantized layers for that and `"onnx"`.
        """
        self._check_format(format)
        if input_signature is None:
            input_signature = [keras.layers.InputSpec(shape=(None, None), dtype="int32", name="token_ids")]
        super().export(filepath, format=format, verbose=verbose, input_signature=input_signature, **kwargs)

    def _check_format(self, format):
        quantized = any(layer.quantization_mode for _, layer in self._inner_layers())
        if format != "tf_saved_model" and self.compute_dtype != "float32":
            raise ValueError(
                f'`format="{format}"` is for float32. Received: a model whose compute dtype is {self.compute_dtype}. '
                "Make one of the same configuration with dtype float32 and give it these weights"
            )
        if format in ("openvino", "litert") and quantized:
            raise ValueError(
                f'`format="{format}"` does not carry quantized layers right. Received: a quantized model. Export it '
                "before `quantize`, and quantize with the tools of that format"
            )
