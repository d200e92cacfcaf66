import contextlib
import functools

import keras

from keras_lt.backend import (
    GroupedTrainFunction,
    can_group,
    check_positive_integer,
    is_single_tensorflow_device,
)
from keras_lt.layers.composite_layer import QuantizableMixin
from keras_lt.models.array_batches import with_array_batches
from keras_lt.models.automatic_steps import automatic_steps
from keras_lt.optimizers import SmoothedRMS
from keras_lt.optimizers.loss_scale_optimizer import LossScaleOptimizer


class BaseModel(QuantizableMixin, keras.Model):
    """Base of all models: what `compile()` means by default, and which formats they are written in."""

    _jit_compile_asked = _steps_per_execution_asked = "auto"
    _steps_per_epoch = None

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
            loss: Loss. Defaults to `"auto"`, the cross-entropy that fits what comes out: for a language
                model `TokenCrossentropy()`, the mean over the real tokens.
            loss_weights: As in Keras.
            metrics: As in Keras.
            weighted_metrics: As in Keras; `"auto"` is what fits the model: `[Perplexity()]` for a language model.
            run_eagerly: As in Keras.
            steps_per_execution: Number of batches a compiled call runs; with XLA on TensorFlow, and on JAX, in one
                program. Defaults to `"auto"`: for a language model as many as take about half a second, up to 16,
                unless a callback looks at single batches, the number of batches is not known, or several devices share
                the work; 1 elsewhere.
            jit_compile: Whether XLA compiles the steps. Defaults to `"auto"`: for a language model on TensorFlow yes,
                unless a strategy has several replicas; else Keras decides.
            auto_scale_loss: As in Keras.
        """
        if steps_per_execution != "auto":
            check_positive_integer("steps_per_execution", steps_per_execution)
        self._jit_compile_asked = jit_compile
        self._steps_per_execution_asked = steps_per_execution
        optimizer = SmoothedRMS() if optimizer == "auto" else keras.optimizers.get(optimizer)
        scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
        if auto_scale_loss and self.dtype_policy.name == "mixed_float16" and optimizer is not None and not scales:
            optimizer = LossScaleOptimizer(optimizer, name="loss_scale_optimizer")
        super().compile(
            optimizer=optimizer,
            loss=self._auto_loss() if loss == "auto" else loss,
            loss_weights=loss_weights,
            metrics=metrics,
            weighted_metrics=self._auto_metrics() if weighted_metrics == "auto" else weighted_metrics,
            run_eagerly=run_eagerly,
            steps_per_execution=1 if steps_per_execution == "auto" else steps_per_execution,
            jit_compile=self._auto_jit_compile() if jit_compile == "auto" and not run_eagerly else jit_compile,
            auto_scale_loss=auto_scale_loss,
        )

    @functools.wraps(keras.Model.fit)
    def fit(
        self,
        x=None,
        y=None,
        batch_size=None,
        epochs=1,
        verbose="auto",
        callbacks=None,
        validation_split=0.0,
        validation_data=None,
        shuffle=True,
        class_weight=None,
        sample_weight=None,
        initial_epoch=0,
        steps_per_epoch=None,
        **kwargs,
    ):
        data = {"x": x, "batch_size": batch_size, "validation_split": validation_split}
        data["steps_per_epoch"] = steps_per_epoch
        is_automatic = self.compiled and self._steps_per_execution_asked == "auto"
        if is_automatic and can_group(self):
            self.steps_per_execution = automatic_steps(self._products_per_row, callbacks=callbacks, **data)
        limits = [steps for steps in (steps_per_epoch, keras.config.max_steps_per_epoch()) if steps]
        self._steps_per_epoch = min(limits, default=None)
        data.update(y=y, sample_weight=sample_weight, class_weight=class_weight, shuffle=shuffle, **kwargs)
        data["validation_data"] = validation_data
        try:
            if is_single_tensorflow_device():
                data = with_array_batches(data)
            return super().fit(epochs=epochs, verbose=verbose, callbacks=callbacks, initial_epoch=initial_epoch, **data)
        finally:
            self._steps_per_epoch = None
            if is_automatic:
                self.steps_per_execution = 1

    def make_train_function(self, force=False):
        # Not in the first step: should that fail, TensorFlow would let no later one make the optimizer's variables.
        self._build_optimizer()
        steps = self.steps_per_execution
        if self._steps_per_execution_asked == "auto":
            # Validation is not grouped, and Keras would unroll a loop for `predict`.
            self.steps_per_execution = 1
        known = None if force else self.train_function
        if not isinstance(known, GroupedTrainFunction) or known.size < steps:
            if steps == 1 or not can_group(self):
                return super().make_train_function(force)
            self.train_function = GroupedTrainFunction(self, steps)
        self.train_function.begin(steps, self._steps_per_epoch)

    def get_compile_config(self):
        config = super().get_compile_config()
        # What "auto" meant on this machine need not be right on the one that loads the model.
        asked = {"jit_compile": self._jit_compile_asked, "steps_per_execution": self._steps_per_execution_asked}
        return {**config, **asked} if config else config

    def compile_from_config(self, config):
        self.compile(**keras.saving.deserialize_keras_object(config))
        self._build_optimizer()

    def export(self, filepath, format="tf_saved_model", verbose=None, input_signature=None, **kwargs):
        self._check_format(format)
        super().export(filepath, format=format, verbose=verbose, input_signature=input_signature, **kwargs)

    def _build_optimizer(self):
        if self.optimizer is None or not self.built or self.optimizer.built:
            return
        is_distributed = hasattr(self, "distribute_strategy")
        with self.distribute_strategy.scope() if is_distributed else contextlib.nullcontext():
            self.optimizer.build(self.trainable_variables)

    def _products_per_row(self, shape):
        """About how many multiplications the forward pass of a row takes; `None`: its steps are not grouped."""

    def _auto_jit_compile(self):
        return "auto"

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
