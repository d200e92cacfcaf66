"""LossScaleOptimizer: a step with an infinite gradient is left out, also where the gradient is sparse."""

import keras
import numpy as np
import pytest

from keras_lt.models import LittleTransformer
from keras_lt.optimizers import SmoothedRMS
from keras_lt.optimizers.loss_scale_optimizer import LossScaleOptimizer
from testing import needs_tensorflow


@needs_tensorflow
@pytest.mark.parametrize(("first", "last", "finite"), [(np.inf, 1, False), (1, np.nan, False), (2, 1, True)])
def test_every_row_of_a_sparse_gradient_counts(first, last, finite):
    import tensorflow as tf

    table = keras.Variable(np.ones((3, 1)), dtype="float32")
    optimizer = LossScaleOptimizer(SmoothedRMS(), initial_scale=1.0)
    optimizer.build([table])
    gradient = tf.IndexedSlices(tf.constant([[first], [last]], "float32"), tf.constant([1, 1]), tf.constant([3, 1]))
    optimizer.apply([gradient], [table])
    assert np.isfinite(table).all()
    assert (np.asarray(table) == 1).all() != finite
    assert float(optimizer.dynamic_scale) == (1.0 if finite else 0.5)


def test_no_gradient():
    assert LossScaleOptimizer(SmoothedRMS()).check_finite([None, np.ones(2, "float32")])


def test_compile_takes_it_for_mixed_float16(tmp_path):
    sizes = {"vocabulary_size": 5, "max_sequence_length": 4, "num_layers": 1, "num_heads": 1, "hidden_dim": 2}
    model = LittleTransformer(**sizes, dtype="mixed_float16")
    model.compile("sgd")
    assert type(model.optimizer) is LossScaleOptimizer
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is LossScaleOptimizer
    assert isinstance(loaded.optimizer.inner_optimizer, keras.optimizers.SGD)
    for chosen in (keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD()), None):
        model.compile(chosen)
        assert model.optimizer is chosen
    model.compile("sgd", auto_scale_loss=False)
    assert isinstance(model.optimizer, keras.optimizers.SGD)
    whole = LittleTransformer(**sizes)
    whole.compile()
    assert isinstance(whole.optimizer, SmoothedRMS)
