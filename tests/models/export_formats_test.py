"""Keras's exports of a language model to other formats, run by the libraries those formats are for."""

import numpy as np
import pytest

from keras_lt.models import presets
from model_testing import exported, random_ids, small
from testing import assert_close, needs_tensorflow, to_numpy

pytestmark = needs_tensorflow

FORMS = {
    "default": {},
    "named_tensor": {name: value for name, value in presets.NAMED_TENSOR.items() if type(value) is not int},
    "rotary": {"position": "rotary", "window_size": 5, "num_key_value_heads": 1, "gated": True, "mask_zero": True},
    "gelu": {"activation": "gelu"},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["onnx", "openvino", "litert"])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_logits_are_those_of_the_model(name, form, tmp_path):
    """For other batch sizes and lengths than any that the export saw, which saw none."""
    model = small(num_layers=1, **FORMS[form])
    logits = exported(model, name, tmp_path)
    for shape in ((1, 1), (7, 13), (2, 5)):
        ids = random_ids(*shape)
        ids[:, -1] = np.where(np.arange(shape[0]) % 2 == 1, 0, ids[:, -1])
        expected = to_numpy(model(ids))
        real = ids != 0 if model.mask_zero else np.ones_like(ids, bool)
        assert_close(logits(token_ids=ids)[real], expected[real], 1e-5)


@pytest.mark.parametrize("name", ["openvino", "litert"])
def test_what_a_format_does_not_carry_is_refused(name, tmp_path):
    half, quantized = small(num_layers=1, dtype="mixed_bfloat16"), small(num_layers=1)
    quantized.head.quantize("int8")
    with pytest.raises(ValueError, match="is for float32. Received: a model whose compute dtype is bfloat16"):
        half.export(str(tmp_path / "half"), format=name)
    with pytest.raises(ValueError, match="does not carry quantized layers right"):
        quantized.export(str(tmp_path / "quantized"), format=name)
