"""Groups of training steps give what Keras gives step by step: weights, histories, callbacks."""

import keras
import numpy as np
import pytest

from keras_lt.backend import GroupedTrainFunction, can_group
from keras_lt.models import HighwayNetwork, LittleTransformer
from testing import BACKEND, assert_close, fresh_process, needs_tensorflow, to_numpy

pytestmark = pytest.mark.skipif(BACKEND == "torch", reason="PyTorch has no program of several steps")

ROWS, LENGTH, CLASSES = 22, 5, 3


class Batches(keras.utils.PyDataset):
    def __init__(self, batches):
        super().__init__()
        self.batches = batches

    def __len__(self):
        return len(self.batches)

    def __getitem__(self, index):
        return self.batches[index]


class Recorder(keras.callbacks.Callback):
    """Remembers the steps at which groups ended, and the weights behind each epoch."""

    def __init__(self):
        super().__init__()
        self.ends, self.weights = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.ends.append(batch)

    def on_epoch_end(self, epoch, logs=None):
        self.weights.append([np.array(weight) for weight in to_numpy(self.model.get_weights())])


def classifier():
    """A model that compiles quickly."""
    keras.utils.set_random_seed(8)
    return HighwayNetwork(CLASSES, 1, 6, image_shape=(2, 3, 1))


def language_model(**arguments):
    keras.utils.set_random_seed(7)
    return LittleTransformer(11, 5, num_layers=1, num_heads=2, hidden_dim=8, **arguments)


def images(rows=ROWS):
    return np.random.default_rng(5).random((rows, 2, 3, 1)).astype("float32"), np.arange(rows) % CLASSES


def ids(rows=ROWS):
    generator = np.random.default_rng(3)
    return generator.integers(0, 11, (rows, LENGTH)), generator.integers(0, 11, (rows, LENGTH))


def batches_of(x, y, size):
    return [(x[start : start + size], y[start : start + size]) for start in range(0, len(x), size)]


def train(steps, fit, model=None, **compile_arguments):
    model = classifier() if model is None else model
    model.compile(steps_per_execution=steps, jit_compile=True, **compile_arguments)
    recorder = Recorder()
    history = model.fit(**fit(), shuffle=False, verbose=0, callbacks=[recorder])
    assert isinstance(model.train_function, GroupedTrainFunction) == (steps > 1)
    state = [np.array(value) for value in to_numpy([v.value for v in model.weights + model.optimizer.variables])]
    return history.history, state, recorder


def check(fit, make=classifier, steps=4, **compile_arguments):
    """Training in groups against Keras's own steps."""
    expected = train(1, fit, make(), **compile_arguments)
    actual = train(steps, fit, make(), **compile_arguments)
    assert_close(actual[0], expected[0], 2e-6)
    assert_close(actual[1], expected[1], 2e-6)
    return actual[2].ends


def arrays():
    x, y = images()
    return {"x": x, "y": y, "batch_size": 3, "epochs": 2}


def test_arrays_with_an_odd_last_group_and_an_odd_last_batch():
    """22 rows are 7 batches of 3 and 1 of 1: two groups of 4, the last of which has two shapes."""
    assert check(arrays) == [3, 7, 3, 7]


def test_more_room_than_batches():
    assert check(arrays, steps=32) == [31, 31]


def test_pydataset():
    x, y = images()
    check(lambda: {"x": Batches(batches_of(x, y, 4)), "epochs": 2})


def test_generator():
    x, y = images()

    def endless():
        while True:
            yield from batches_of(x, y, 4)

    check(lambda: {"x": endless(), "steps_per_epoch": 6, "epochs": 2})


def test_tensorflow_dataset():
    tf = pytest.importorskip("tensorflow")
    x, y = images()
    check(lambda: {"x": tf.data.Dataset.from_tensor_slices((x, y)).batch(4), "epochs": 2})


def test_dataset_of_unknown_length():
    tf = pytest.importorskip("tensorflow")
    x, y = images()
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(4).filter(lambda x, y: tf.shape(x)[0] > 2)
    check(lambda: {"x": dataset})


@pytest.mark.parametrize("steps_per_epoch", [3, 6, 9])
def test_steps_per_epoch_are_exact(steps_per_epoch):
    """Keras alone runs whole groups: 8 steps for 6, and the epochs drift apart."""
    x, y = images(44)

    class Endless(Batches):
        def __len__(self):
            raise TypeError

        @property
        def num_batches(self):
            return None

        def __getitem__(self, index):
            return self.batches[index % len(self.batches)]

    check(lambda: {"x": Endless(batches_of(x, y, 4)), "steps_per_epoch": steps_per_epoch, "epochs": 3})


def test_dictionaries_and_masks():
    x, y = ids()
    mask = np.arange(LENGTH) < np.arange(ROWS)[:, None] % LENGTH + 1
    check(lambda: {"x": {"token_ids": x, "padding_mask": mask}, "y": y, "batch_size": 4}, language_model)


def test_sample_weight_and_validation():
    x, y = ids()
    weight = np.random.default_rng(4).random((ROWS, LENGTH)).astype("float32")
    fit = {"x": x, "y": y, "sample_weight": weight, "batch_size": 5, "epochs": 2, "validation_split": 0.3}
    check(lambda: fit, language_model, weighted_metrics="auto")


def test_class_weight():
    check(lambda: {**arrays(), "class_weight": {0: 1.0, 1: 0.2, 2: 3.0}})


@pytest.mark.parametrize(
    "options",
    [{"use_ema": True, "ema_overwrite_frequency": 3}, {"gradient_accumulation_steps": 3}, {"global_clipnorm": 0.1}],
    ids=lambda options: next(iter(options)),
)
def test_options_of_the_optimizer(options):
    x, y = images()
    fit = {"x": x, "y": y, "batch_size": 2, "epochs": 2}
    for steps in (1, 4):
        optimizer = keras.optimizers.Adam(0.01, **options)
        result = train(steps, lambda: fit, optimizer=optimizer)
        if steps == 1:
            expected = result
    assert_close(result[:2], expected[:2], 2e-6)


def test_dropout_draws_the_same_numbers():
    x, y = ids()
    check(lambda: {"x": x, "y": y, "batch_size": 3}, lambda: language_model(dropout=0.4, seed=5))


def test_stop_training_ends_the_epoch_behind_the_group():
    class Stopper(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = batch >= 4

    x, y = images()
    model = classifier()
    model.compile(steps_per_execution=4, jit_compile=True)
    model.fit(x, y, batch_size=2, epochs=5, verbose=0, callbacks=[Stopper()])
    assert int(model.optimizer.iterations) == 8


def test_a_second_fit_and_single_batches_use_the_same_program():
    x, y = images()
    model, other = classifier(), classifier()
    for each, steps in ((model, "auto"), (other, 1)):
        each.compile(steps_per_execution=steps)
        each.fit(x, y, batch_size=3, verbose=0, shuffle=False)
        function = each.train_function
        each.fit(x, y, batch_size=3, verbose=0, shuffle=False, callbacks=[Recorder()])
        losses = [each.train_on_batch(x[:3], y[:3]), each.evaluate(x, y, verbose=0)]
        assert each.train_function is function
        assert each.predict(x, verbose=0).shape == (ROWS, CLASSES)
        each.losses_seen = np.array(losses, "float64")
    assert_close(model.losses_seen, other.losses_seen, 2e-6)
    assert_close(model.get_weights(), other.get_weights(), 2e-6)


def test_a_callback_sees_each_step_where_it_looks():
    x, y = images()
    model = classifier()
    model.compile()
    recorder = Recorder()
    model.fit(x, y, batch_size=3, verbose=0, callbacks=[recorder])
    assert recorder.ends == list(range(8))


def test_compiling_anew_forgets_the_program():
    x, y = images()
    model = classifier()
    for rate in (0.1, 0.0):
        model.compile(keras.optimizers.SGD(rate), steps_per_execution=4, jit_compile=True)
        before = to_numpy(model.get_weights())
        model.fit(x, y, batch_size=3, verbose=0)
        moved = max(np.abs(one - other).max() for one, other in zip(model.get_weights(), before, strict=True))
        assert (moved > 0) == (rate > 0)


def test_where_steps_are_not_grouped():
    class OwnStep(HighwayNetwork):
        def train_step(self, *arguments):
            return super().train_step(*arguments)

    class OwnMetrics(HighwayNetwork):
        def compute_metrics(self, *arguments, **keywords):
            return {**super().compute_metrics(*arguments, **keywords), "mine": keras.ops.convert_to_tensor(3.0)}

    compiled = {"jit_compile": True}
    for make, arguments in ((OwnStep, compiled), (OwnMetrics, compiled), (HighwayNetwork, {"run_eagerly": True})):
        model = make(CLASSES, 1, 6)
        model.compile(steps_per_execution=4, **arguments)
        assert not can_group(model)
        x, y = images(8)
        history = model.fit(x, y, batch_size=2, verbose=0).history
        assert not isinstance(model.train_function, GroupedTrainFunction)
        assert int(model.optimizer.iterations) == 4
        assert history.get("mine") == ([3.0] if make is OwnMetrics else None)


@needs_tensorflow
def test_without_xla_an_explicit_number_is_keras_own():
    x, y = images()
    model = classifier()
    model.compile(steps_per_execution=4)
    model.fit(x, y, batch_size=3, verbose=0)
    assert not isinstance(model.train_function, GroupedTrainFunction)
    assert int(model.optimizer.iterations) == 8


@needs_tensorflow
def test_several_replicas_are_keras_own():
    code = """
    import numpy as np, tensorflow as tf
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2)
    import keras
    from keras_lt.models import LittleTransformer
    from keras_lt.backend import can_group
    with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = LittleTransformer(11, 5, num_layers=1, num_heads=2, hidden_dim=8)
        model.compile()
    ids = np.zeros((8, 5), "int32")
    model.fit(ids, ids, batch_size=2, verbose=0)
    print(can_group(model), model.optimizer.iterations.numpy(), model.steps_per_execution)
    """
    assert fresh_process(code).split() == ["False", "4", "1"]
