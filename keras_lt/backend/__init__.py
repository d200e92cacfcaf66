"""What depends on the Keras backend: whether values can be looked at, implicit masks, compilation."""

from keras_lt.backend.array_dataset import array_dataset
from keras_lt.backend.checks import (
    check_ids,
    check_number,
    check_positive,
    check_positive_integer,
    check_positive_integers,
    check_rate,
    is_concrete,
)
from keras_lt.backend.compilation import (
    compile_function,
    has_accelerator,
    is_single_tensorflow_device,
    is_tracing,
    prefers_jit,
)
from keras_lt.backend.grouped_train_function import GroupedTrainFunction, can_group
from keras_lt.backend.implicit_mask import implicit_mask, with_implicit_mask
from keras_lt.backend.replicas import sum_on_first_replica
