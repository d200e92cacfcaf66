import inspect

import keras
import numpy as np


class QuantizableMixin:
    """Lets a layer or model made of Keras layers be saved and loaded again after `quantize`.

    Keras quantizes the inner layers of a composite one by one, and no configuration says so: on loading, the composite
    would make them as floats again. Here `get_config` lists which inner layer was quantized and how, and `from_config`
    has them quantized the same way once they are built.
    """

    def get_config(self):
        config = super().get_config()
        quantization = {
            path: [
                layer.quantization_mode,
                keras.saving.serialize_keras_object(getattr(layer, "quantization_config", None)),
            ]
            for path, layer in self._inner_layers()
            if layer.quantization_mode is not None
        }
        if quantization:
            config["quantization"] = quantization
        return config

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        quantization = config.pop("quantization", None)
        composite = super().from_config(config)
        composite._quantization_to_restore = quantization
        if composite.built:
            composite.restore_quantization()
        return composite

    def finish_build(self):
        """The last line of `build`: what was said of the whole before there were inner layers is passed on to them."""
        self.restore_quantization()
        if not self.trainable:
            for _, layer in self._inner_layers():
                layer.trainable = False

    def restore_quantization(self):
        """Quantize the inner layers as the configuration said: of effect after loading, once."""
        quantization = getattr(self, "_quantization_to_restore", None)
        if quantization:
            self._quantization_to_restore = None
            layers = dict(self._inner_layers())
            for path, (mode, config) in quantization.items():
                layers[path].quantize(mode, config=keras.saving.deserialize_keras_object(config))

    def _inner_layers(self):
        prefix = f"{self.path}/"
        return [
            (layer.path.removeprefix(prefix), layer) for layer in self._flatten_layers(include_self=False) if layer.path
        ]


class CompositeLayer(QuantizableMixin, keras.layers.Layer):
    """Base of the layers that are made of other layers and take `(B, T, D)`."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.input_spec = keras.layers.InputSpec(ndim=3)

    def compute_output_spec(self, *args, **kwargs):
        spec = self._output_spec(**inspect.signature(self.call).bind(*args, **kwargs).arguments)
        # Copies: the cache that comes out is another tensor than went in, also where nothing but its values differ.
        return keras.tree.map_structure(lambda x: keras.KerasTensor(x.shape, dtype=x.dtype), spec)

    def _output_spec(self, inputs, **arguments):
        """What `call` returns, as `keras.KerasTensor`s."""
        return self.symbolic(self.compute_output_shape(inputs.shape))

    def symbolic(self, shape):
        """A `keras.KerasTensor` of the layer's compute dtype."""
        return keras.KerasTensor(shape, dtype=self.compute_dtype)


def check_shape(name, value, *expected):
    """Raise a `ValueError` unless a tensor, as far as its shape is known, has one of the shapes; `None` passes."""
    if value is None:
        return
    shape = tuple(value.shape if hasattr(value, "shape") else np.shape(value))
    for wanted in expected:
        if len(shape) == len(wanted) and all(
            None in sizes or sizes[0] == sizes[1] for sizes in zip(shape, wanted, strict=True)
        ):
            return
    raise ValueError(f"`{name}` must have the shape {' or '.join(map(str, expected))}. Received: {name}.shape={shape}")


def pack_results(output, scores, cache):
    """`output[, scores][, cache]`: what is not `None`, a tuple if it is more than the output."""
    results = tuple(result for result in (output, scores, cache) if result is not None)
    return results if len(results) > 1 else output


def unpack_results(results, has_scores, has_cache):
    """The other way round: `(output, scores or None, cache or None)`."""
    if not has_scores and not has_cache:
        return results, None, None
    return results[0], results[1] if has_scores else None, results[-1] if has_cache else None
