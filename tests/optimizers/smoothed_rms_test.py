"""SmoothedRMS against source S3's recurrence in NumPy, closed forms, and the same steps taken another way."""

import os
import pathlib
import subprocess
import sys

import keras
import ml_dtypes
import numpy as np
import pytest
from keras import ops

from keras_lt.optimizers import SmoothedRMS

ROOT = pathlib.Path(__file__).parents[2]
needs_tensorflow = pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="only TensorFlow has IndexedSlices and MirroredStrategy"
)

BASE_OPTIONS = {
    "plain": {},
    "clipnorm": {"clipnorm": 0.05},
    "clipvalue": {"clipvalue": 0.01},
    "global_clipnorm": {"global_clipnorm": 0.05},
    "weight_decay": {"weight_decay": 0.1},
    "use_ema": {"use_ema": True, "ema_momentum": 0.8},
    "ema_overwrite_frequency": {"use_ema": True, "ema_momentum": 0.8, "ema_overwrite_frequency": 2},
    "loss_scale_factor": {"loss_scale_factor": 1024.0},
    "gradient_accumulation_steps": {"gradient_accumulation_steps": 3},
}


def inflate(p):
    return p, 0.0, 0.0


def update(triple, g, learning_rate=0.01, beta=0.9, mu=0.9, epsilon=1e-8):
    p, v, r = triple
    r = beta * r + (1 - beta) * g**2
    v = mu * v + (1 - mu) * g
    return p - learning_rate / (np.sqrt(r) + epsilon) * v, v, r


def deflate(triple):
    return triple[0]


def values(variables):
    return [ops.convert_to_numpy(ops.cast(variable, "float32")) for variable in variables]


def assert_close(actual, expected, atol=1e-6):
    for left, right in zip(actual, expected, strict=True):
        np.testing.assert_allclose(left, right, rtol=0, atol=atol)


def compiled_apply(optimizer, variables):
    # A function that applies gradients inside one XLA program.
    optimizer.build(variables)
    if keras.config.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(lambda gradients: optimizer.apply(gradients), jit_compile=True)
    if keras.config.backend() != "jax":
        pytest.skip("XLA programs are compiled on TensorFlow and JAX only")
    import jax

    step = jax.jit(optimizer.stateless_apply)

    def apply(gradients):
        new_values = step([v.value for v in optimizer.variables], gradients, [v.value for v in variables])
        for variable, value in zip(variables + optimizer.variables, new_values[0] + new_values[1], strict=True):
            variable.assign(value)

    return apply


def run_python(code, *arguments):
    environment = dict(os.environ, KERAS_BACKEND=keras.config.backend(), TF_CPP_MIN_LOG_LEVEL="3")
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), environment.get("PYTHONPATH", "")])
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], env=environment, capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr[-4000:]


@pytest.mark.parametrize(
    "settings",
    [{}, {"learning_rate": 0.003, "beta": 0.99, "mu": 0.7, "epsilon": 1e-3}, {"beta": 0.0}, {"mu": 0.0}],
    ids=["defaults", "all", "beta=0", "mu=0"],
)
def test_equals_the_chapters_recurrence_for_100_steps(settings):
    random = np.random.default_rng(1)
    starts = [random.normal(size=shape).astype("float32") for shape in [(3, 5), (7,)]]
    variables = [keras.Variable(start) for start in starts]
    triples = [inflate(start.astype("float64")) for start in starts]
    optimizer = SmoothedRMS(**settings)

    for _ in range(100):
        gradients = [random.normal(size=start.shape).astype("float32") for start in starts]
        optimizer.apply([ops.convert_to_tensor(gradient) for gradient in gradients], variables)
        triples = [update(t, g.astype("float64"), **settings) for t, g in zip(triples, gradients, strict=True)]

    assert_close(values(variables), [deflate(triple) for triple in triples])


def test_constant_gradient_follows_the_closed_form():
    learning_rate, beta, mu = 0.02, 0.8, 0.6
    gradient = np.float32([1e-3, -4.0, 250.0])
    variable = keras.Variable(np.zeros(3, "float32"))
    optimizer = SmoothedRMS(learning_rate, beta=beta, mu=mu)
    previous = np.zeros(3)

    for step in range(1, 13):
        optimizer.apply([ops.convert_to_tensor(gradient)], [variable])
        current = values([variable])[0]
        length = learning_rate * (1 - mu**step) / np.sqrt(1 - beta**step)
        # The closed form leaves epsilon out, which shortens the step of the smallest gradient by 1e-8 / 4e-4.
        np.testing.assert_allclose(current - previous, -length * np.sign(gradient), rtol=0, atol=1e-6)
        if step == 1:
            first = learning_rate * (1 - mu) / np.sqrt(1 - beta)
            np.testing.assert_allclose(np.abs(current), first, rtol=0, atol=1e-6)
        previous = current


def test_learning_rate_schedule():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.1, 0.02, 0.005])
    variable = keras.Variable(np.float32([0.5, -2.0]))
    optimizer = SmoothedRMS(schedule)
    triple = inflate(np.array([0.5, -2.0]))

    for step, rate in enumerate([0.1, 0.1, 0.02, 0.02, 0.005, 0.005]):
        gradient = np.float32([step - 2.5, 1.0])
        optimizer.apply([ops.convert_to_tensor(gradient)], [variable])
        triple = update(triple, gradient.astype("float64"), learning_rate=rate)
        assert_close(values([variable]), [deflate(triple)])


def test_schedule_counts_every_batch_of_an_accumulation():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.1, 0.02])
    variable = keras.Variable(np.zeros(2, "float32"))
    optimizer = SmoothedRMS(schedule, gradient_accumulation_steps=3)
    for _ in range(3):
        optimizer.apply([ops.ones((2,))], [variable])
    # The step is taken at batch 2, past the boundary, although it is the first update.
    assert_close(values([variable]), [deflate(update(inflate(np.zeros(2)), 1.0, learning_rate=0.02))])


def test_four_accumulated_batches_of_three_equal_one_of_twelve():
    random = np.random.default_rng(2)
    x, y = random.normal(size=(2, 12, 5)), random.normal(size=(2, 12))
    start = random.normal(size=5).astype("float32")

    def mean_gradient(variable, x, y):
        weights = ops.convert_to_numpy(variable).astype("float64")
        return ops.convert_to_tensor((2 * x.T @ (x @ weights - y) / len(y)).astype("float32"))

    whole, parts = keras.Variable(start), keras.Variable(start)
    optimizer = SmoothedRMS(clipnorm=3.0)
    accumulating = SmoothedRMS(clipnorm=3.0, gradient_accumulation_steps=4)
    for x_batch, y_batch in zip(x, y, strict=True):
        before = values([parts])[0]
        optimizer.apply([mean_gradient(whole, x_batch, y_batch)], [whole])
        for part in range(4):
            np.testing.assert_array_equal(values([parts])[0], before)
            rows = slice(3 * part, 3 * part + 3)
            accumulating.apply([mean_gradient(parts, x_batch[rows], y_batch[rows])], [parts])
        assert_close(values([parts]), values([whole]))


@needs_tensorflow
@pytest.mark.parametrize("options", BASE_OPTIONS.values(), ids=BASE_OPTIONS)
def test_sparse_gradients_with_repeated_ids_equal_dense(options):
    import tensorflow as tf

    random = np.random.default_rng(3)
    table = random.normal(size=(7, 3)).astype("float32")
    mixer = random.normal(size=(3, 2)).astype("float32")
    # Rows 5 and 6 are never looked up; rows 0 to 4 on average five times a batch.
    batches = [(random.integers(0, 5, size=(5, 5)), random.normal(size=(5, 5, 2)).astype("float32")) for _ in range(6)]
    kinds = []

    def train(look_up, embeddings):
        variables = [embeddings, keras.Variable(mixer)]
        optimizer = SmoothedRMS(0.1, **options)
        for ids, targets in batches:
            with tf.GradientTape() as tape:
                error = look_up(ids) @ ops.convert_to_tensor(variables[1]) - targets
                loss = optimizer.scale_loss(tf.reduce_mean(error**2))
            gradients = tape.gradient(loss, [variable.value for variable in variables])
            kinds.append(type(gradients[0]).__name__)
            optimizer.apply(gradients, variables)
        trained = values(variables)
        optimizer.finalize_variable_values(variables)
        return trained + values(variables)

    layer = keras.layers.Embedding(7, 3)
    layer.build()
    layer.set_weights([table])
    sparse = train(layer, layer.embeddings)
    dense_table = keras.Variable(table)
    dense = train(lambda ids: ops.one_hot(ids, 7) @ ops.convert_to_tensor(dense_table), dense_table)

    assert kinds == ["IndexedSlices"] * 6 + ["EagerTensor"] * 6
    assert_close(sparse, dense)
    assert np.abs(sparse[0][:5] - table[:5]).min() > 1e-3


@needs_tensorflow
def test_repeated_ids_of_a_float16_table_are_summed_in_float32():
    import tensorflow as tf

    # In float16 the sum of ones stands still at 2,048.
    ones = tf.IndexedSlices(tf.ones((3001, 2), "float16"), tf.fill([3001], 3), tf.constant([5, 2]))
    table = keras.Variable(np.zeros((5, 2)), dtype="float16")
    optimizer = SmoothedRMS(mu=0.0)
    optimizer.apply([ones], [table])

    smoothed_gradient = optimizer.variables[-1]
    assert smoothed_gradient.name.endswith("smoothed_gradient")
    expected = np.zeros((5, 2))
    expected[3] = 3001
    np.testing.assert_array_equal(smoothed_gradient.numpy(), expected)


@needs_tensorflow
def test_sparse_gradient_inside_a_compiled_step():
    import tensorflow as tf

    ids = tf.constant([[4, 4, 1, 4, 0]])
    results = []
    for compiled in (False, True):
        layer = keras.layers.Embedding(7, 3, embeddings_initializer=keras.initializers.RandomNormal(seed=1))
        layer.build()
        optimizer = SmoothedRMS(clipnorm=0.1)
        optimizer.build([layer.embeddings])

        def step(layer=layer, optimizer=optimizer):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(layer(ids) ** 2)
            optimizer.apply(tape.gradient(loss, [layer.embeddings.value]))

        take_step = tf.function(step, jit_compile=True) if compiled else step
        for _ in range(3):
            take_step()
        results.append(values([layer.embeddings]))
    assert_close(results[1], results[0])


@pytest.mark.parametrize("options", BASE_OPTIONS.values(), ids=BASE_OPTIONS)
def test_compiled_steps_equal_eager_steps(options):
    random = np.random.default_rng(4)
    starts = [random.normal(size=shape).astype("float32") for shape in [(2, 3), (5,)]]
    eager, compiled = ([keras.Variable(start) for start in starts] for _ in range(2))
    optimizer = SmoothedRMS(**options)
    apply = compiled_apply(SmoothedRMS(**options), compiled)
    for _ in range(7):
        gradients = [ops.convert_to_tensor(random.normal(size=s.shape).astype("float32")) for s in starts]
        optimizer.apply(gradients, eager)
        apply(gradients)
    assert_close(values(compiled), values(eager))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_narrow_weights_take_the_float32_step_rounded(dtype):
    gradients = np.array([1e-7, -3e-6, 1e-4, -0.02, 0.7, -11.0, 1e3]).astype(dtype)
    for start in (0.0, 0.3):
        weight = np.full(7, start).astype(dtype)
        variable = keras.Variable(weight, dtype=str(np.dtype(dtype)))
        optimizer = SmoothedRMS()
        v = r = np.zeros(7)
        for factor in (1, -0.5, 2):
            gradient = (gradients.astype("float64") * factor).astype(dtype)
            optimizer.apply([ops.convert_to_tensor(gradient)], [variable])
            new, v, r = update((weight.astype("float64"), v, r), gradient.astype("float64"))
            weight = new.astype("float32").astype(dtype)
            np.testing.assert_array_equal(values([variable])[0], weight.astype("float32"))


@pytest.mark.parametrize(
    ("options", "gradients", "expected"),
    [
        # The norm's square is 170,000: more than float16 holds.
        ({"clipnorm": 5.0}, [[100.0, -400.0]], [5 / 17**0.5, -20 / 17**0.5]),
        ({"global_clipnorm": 5.0}, [[100.0, -400.0]], [5 / 17**0.5, -20 / 17**0.5]),
        # A power of two that float16 holds, divided by 2**20, is not one it holds.
        ({"loss_scale_factor": 2.0**20}, [[2.0**-10, -(2.0**3)]], [2.0**-30, -(2.0**-17)]),
        # 2,048 + 1 is 2,048 in float16.
        ({"gradient_accumulation_steps": 3}, [[2048.0, 0.5], [1.0, 0.0], [1.0, 0.25]], [2050 / 3, 0.25]),
    ],
    ids=["clipnorm", "global_clipnorm", "loss_scale_factor", "gradient_accumulation_steps"],
)
def test_options_of_float16_weights_work_in_float32(options, gradients, expected):
    variable = keras.Variable(np.zeros(2), dtype="float16")
    optimizer = SmoothedRMS(mu=0.0, **options)
    for gradient in gradients:
        optimizer.apply([ops.convert_to_tensor(np.float16(gradient))], [variable])
    smoothed_gradient = optimizer.variables[-1]
    np.testing.assert_allclose(ops.convert_to_numpy(smoothed_gradient), expected, rtol=1e-6)


def test_moving_average_overwrites_float16_weights():
    variable = keras.Variable(np.zeros(2), dtype="float16")
    optimizer = SmoothedRMS(0.5, use_ema=True, ema_momentum=0.75, ema_overwrite_frequency=2)
    first = update(inflate(np.zeros(2)), 1.0, learning_rate=0.5)
    second = update(first, 1.0, learning_rate=0.5)
    for _ in range(2):
        optimizer.apply([ops.ones((2,), "float16")], [variable])
    # Keras starts the average at the weights after the first step. Three float16 roundings, each 2**-11 at most.
    average = 0.75 * deflate(first) + 0.25 * deflate(second)
    np.testing.assert_allclose(values([variable])[0], average, rtol=2**-9)


def test_averages_are_as_wide_as_the_weight_or_float32():
    expected = {"float16": "float32", "bfloat16": "float32", "float32": "float32", "float64": "float64"}
    if keras.config.backend() == "jax":
        del expected["float64"]
    for dtype, wide in expected.items():
        optimizer = SmoothedRMS(gradient_accumulation_steps=2)
        optimizer.build([keras.Variable(np.zeros((2, 3)), dtype=dtype)])
        assert [variable.dtype for variable in optimizer.variables[2:]] == [wide] * 3


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_zero_gradient_takes_a_zero_step_for_ever(dtype):
    start = np.array([0.0, 0.3, -2.0]).astype(dtype)
    variable = keras.Variable(start, dtype=dtype)
    apply = compiled_apply(SmoothedRMS(epsilon=2.0**-126, clipnorm=1.0), [variable])
    for _ in range(200):
        apply([ops.zeros((3,), dtype)])
    np.testing.assert_array_equal(ops.convert_to_numpy(variable), start)


def test_weights_come_to_rest_after_the_last_gradient():
    variable = keras.Variable(np.zeros(2, "float32"))
    apply = compiled_apply(SmoothedRMS(), [variable])
    apply([ops.ones((2,))])
    # 1,000 steps take r = 0.1 * 0.9**k through the numbers too small for float32's normal form to zero.
    for _ in range(1000):
        apply([ops.zeros((2,))])
    # Steps shrink by 0.9 / sqrt(0.9), so that they sum to a geometric series.
    np.testing.assert_allclose(values([variable])[0], -0.01 * 0.1**0.5 / (1 - 0.9**0.5), rtol=0, atol=1e-6)


def test_missing_gradients_and_wrong_counts_are_keras_errors():
    variables = [keras.Variable(np.zeros(2, "float32")), keras.Variable(np.ones(3, "float32"))]
    optimizer = SmoothedRMS()
    with pytest.raises(ValueError, match="must already be built"):
        optimizer.apply([ops.ones((2,))])
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        optimizer.apply([ops.ones((2,)), None], variables)
    np.testing.assert_array_equal(values(variables)[1], np.ones(3))
    with pytest.raises(ValueError, match="3 gradients"):
        optimizer.apply([ops.ones((2,))] * 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("beta", 1.0), ("beta", -0.1), ("mu", 1.5), ("mu", None), ("epsilon", 0.0), ("epsilon", 1e-40), ("beta", "0.9")],
)
def test_bad_hyper_parameters_are_refused(name, value):
    with pytest.raises(ValueError, match=f"`{name}`.*Received: {name}={value!r}"):
        SmoothedRMS(**{name: value})


def test_unknown_option_is_refused():
    with pytest.raises(ValueError, match="momentum"):
        SmoothedRMS(momentum=0.9)


@pytest.mark.parametrize(
    "setting",
    [
        {"learning_rate": 0.5},
        {"beta": 0.5},
        {"mu": 0.25},
        {"epsilon": 0.125},
        {"weight_decay": 0.004},
        {"clipnorm": 2.0},
        {"clipvalue": 3.0},
        {"global_clipnorm": 5.0},
        {"use_ema": True},
        {"ema_momentum": 0.75},
        {"ema_overwrite_frequency": 7},
        {"loss_scale_factor": 64.0},
        {"gradient_accumulation_steps": 3},
        {"name": "textbook"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_config_round_trip(setting):
    (name, value), *_ = setting.items()
    optimizer = SmoothedRMS(**setting)
    config = optimizer.get_config()
    assert config[name] == value
    assert config[name] != SmoothedRMS().get_config()[name]
    assert SmoothedRMS.from_config(optimizer.get_config()).get_config() == config

    serialized = keras.saving.serialize_keras_object(optimizer)
    assert serialized["registered_name"] == "keras_lt>SmoothedRMS"
    restored = keras.saving.deserialize_keras_object(serialized)
    assert type(restored) is SmoothedRMS
    assert restored.get_config() == config


def test_config_keeps_a_schedule():
    schedule = keras.optimizers.schedules.CosineDecay(0.25, 17)
    restored = SmoothedRMS.from_config(SmoothedRMS(schedule).get_config())
    assert restored.get_config()["learning_rate"]["config"] == schedule.get_config()


RESUME = """
import sys
import keras, numpy as np
import keras_lt.optimizers
model_path, data_path, result_path = sys.argv[1:]
model, data = keras.models.load_model(model_path), np.load(data_path)
for x, y in zip(data["x"][3:], data["y"][3:], strict=True):
    model.train_on_batch(x, y)
variables = [keras.ops.convert_to_numpy(v) for v in model.trainable_variables + model.optimizer.variables]
np.savez(result_path, *variables)
"""


def test_resuming_in_a_fresh_process_equals_an_unbroken_run_bit_for_bit(tmp_path):
    random = np.random.default_rng(5)
    x, y = random.normal(size=(7, 3, 5)).astype("float32"), random.normal(size=(7, 3, 2)).astype("float32")
    np.savez(tmp_path / "data.npz", x=x, y=y)

    def train(x, y):
        keras.utils.set_random_seed(6)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(7, "tanh"), keras.layers.Dense(2)])
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.9)
        # The run breaks after batch 3, inside an accumulation of 2.
        options = {"weight_decay": 0.01, "use_ema": True, "gradient_accumulation_steps": 2}
        model.compile(SmoothedRMS(schedule, **options), loss="mse")
        # Batch by batch: the end of a fit would overwrite the weights with their moving average.
        for x_batch, y_batch in zip(x, y, strict=True):
            model.train_on_batch(x_batch, y_batch)
        return model

    unbroken = train(x, y)
    train(x[:3], y[:3]).save(tmp_path / "model.keras")
    run_python(RESUME, tmp_path / "model.keras", tmp_path / "data.npz", tmp_path / "result.npz")

    expected = [ops.convert_to_numpy(v) for v in unbroken.trainable_variables + unbroken.optimizer.variables]
    resumed = np.load(tmp_path / "result.npz")
    assert int(unbroken.optimizer.variables[0]) == 7
    assert len(resumed.files) == len(expected)
    for name, value in zip(resumed.files, expected, strict=True):
        np.testing.assert_array_equal(resumed[name], value)


MIRRORED = """
import contextlib
import numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
import keras
from keras_lt.optimizers import SmoothedRMS

random = np.random.default_rng(7)
ids = random.integers(0, 7, size=(36, 3))
targets = random.normal(size=(36, 2)).astype("float32")
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def train(scope, options):
    with scope:
        keras.utils.set_random_seed(8)
        model = keras.Sequential([keras.layers.Embedding(7, 5), keras.layers.Flatten(), keras.layers.Dense(2)])
        model.compile(SmoothedRMS(**options), loss="mse", jit_compile=False)
    model.fit(ids, targets, batch_size=12, shuffle=False, verbose=0)
    return [keras.ops.convert_to_numpy(weight) for weight in model.trainable_variables]

def difference(options):
    pairs = zip(train(contextlib.nullcontext(), options), train(strategy.scope(), options), strict=True)
    return max(np.abs(one - two).max() for one, two in pairs)

for options in (
    {},
    {"weight_decay": 0.1},
    {"use_ema": True, "ema_momentum": 0.8},
    {"loss_scale_factor": 64.0, "clipnorm": 0.05},
    {"clipvalue": 0.01},
    {"global_clipnorm": 0.05},
):
    assert difference(options) <= 1e-6, (options, difference(options))

# What the docstring says of Keras's own limits.
for options in ({"gradient_accumulation_steps": 2}, {"use_ema": True, "ema_overwrite_frequency": 2}):
    try:
        train(strategy.scope(), options)
    except RuntimeError as error:
        assert "merge_call" in str(error), error
    else:
        raise AssertionError(f"{options} no longer raises")
"""


@needs_tensorflow
def test_two_mirrored_replicas_equal_one_device():
    run_python(MIRRORED)
