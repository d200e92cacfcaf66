"""S2's residual learning, `H(x) = F(x) + x`, against NumPy and PyTorch, and what its derivative is."""

import json

import keras
import numpy as np
import pytest

from keras_lt.layers import ResidualBlock
from layer_testing import FAST_MODE, LOW_PRECISION, NumPyNormal, cached, float64
from testing import MODES, assert_close, gradient, needs_tensorflow, needs_torch, run, to_numpy

B, C = 2, 3
ODD_EVEN, EVEN_ODD = (5, 8), (4, 7)
# Every shortcut with and without another shape, odd and even sizes, kernels and strides.
CASES = {
    "identity": ({"filters": C}, ODD_EVEN),
    "A": ({"filters": C, "shortcut": "A"}, ODD_EVEN),
    "A_filters": ({"filters": 5, "shortcut": "A"}, ODD_EVEN),
    "A_strides": ({"filters": 5, "strides": 2, "shortcut": "A"}, EVEN_ODD),
    "A_bottleneck": ({"filters": 2, "strides": 2, "shortcut": "A", "bottleneck": True}, ODD_EVEN),
    "B_filters": ({"filters": 2}, ODD_EVEN),
    "B_strides": ({"filters": C, "strides": 2}, ODD_EVEN),
    "B_strides_3": ({"filters": 4, "strides": 3}, EVEN_ODD),
    "B_bottleneck": ({"filters": 2, "strides": 2, "bottleneck": True}, EVEN_ODD),
    "C": ({"filters": C, "shortcut": "C"}, EVEN_ODD),
    "C_strides": ({"filters": 4, "strides": 2, "shortcut": "C"}, EVEN_ODD),
    "C_bottleneck": ({"filters": 2, "shortcut": "C", "bottleneck": True}, ODD_EVEN),
    "kernel_5": ({"filters": C, "kernel_size": 5, "strides": 2}, ODD_EVEN),
    "kernel_4": ({"filters": C, "kernel_size": 4, "strides": 2}, EVEN_ODD),
    "kernel_1": ({"filters": C, "kernel_size": 1, "strides": 2}, ODD_EVEN),
}
every_case = pytest.mark.parametrize("case", CASES)


def draw(block, seed=0):
    """Give every weight a value that matters, the variances one above 0."""
    random = np.random.default_rng(seed)
    for weight in block.weights:
        values = random.normal(0, 0.3, weight.shape)
        if weight.path.endswith(("gamma", "variance")):
            values = np.abs(values) + 0.5
        weight.assign(values)
    return block


def block_of(case, channels=C, **arguments):
    block = ResidualBlock(**CASES[case][0], kernel_initializer=NumPyNormal(), **arguments)
    block.build((None, channels, None, None) if block.data_format == "channels_first" else (None, None, None, channels))
    return draw(block)


@cached
def shared_block(case):
    return block_of(case)


def example(case):
    return np.random.default_rng(1).normal(size=(B, *CASES[case][1], C)).astype("float32")


class NumPyBlock:
    """Weights of a block in float64, and S2's `F(x)`, `H(x)` written from them."""

    def __init__(self, block):
        self.block = block
        self.kernels = [float64(convolution.kernel) for convolution in block.convolutions]
        self.norms = [self.numbers(norm) for norm in block.norms]
        if block.projection is not None:
            self.projection, self.projection_norm = (
                float64(block.projection.kernel),
                self.numbers(block.projection_norm),
            )

    def numbers(self, norm):
        return [float64(value) for value in (norm.gamma, norm.beta, norm.moving_mean, norm.moving_variance)]

    def branch(self, x, training):
        """`F(x)`, and what the moving statistics of its norms are afterwards."""
        block, statistics = self.block, []
        for number, (kernel, norm) in enumerate(zip(self.kernels, self.norms, strict=True)):
            strides = block.strides if number == (1 if block.bottleneck else 0) else 1
            x, moving = batch_norm(convolve(np.maximum(x, 0) if number else x, kernel, strides), *norm, training)
            statistics += moving
        return x, statistics

    def __call__(self, x, training):
        output, statistics = self.branch(x, training)
        strides, shortcut, differs = self.block.strides, self.block.shortcut, output.shape != x.shape
        if shortcut == "C" or (shortcut == "B" and differs):
            carried, moving = batch_norm(convolve(x, self.projection, strides), *self.projection_norm, training)
            return output + carried, statistics + moving
        carried = np.zeros(output.shape)
        carried[..., : x.shape[3]] = x[:, ::strides, ::strides]
        return output + carried, statistics


def convolve(x, kernel, strides):
    """Cross-correlation output by output, with zeros around the images: as many before as behind, or one less."""
    size = kernel.shape[0]
    before = (size - 1) // 2
    padded = np.zeros((len(x), x.shape[1] + size - 1, x.shape[2] + size - 1, x.shape[3]))
    padded[:, before : before + x.shape[1], before : before + x.shape[2]] = x
    output = np.zeros((len(x), -(-x.shape[1] // strides), -(-x.shape[2] // strides), kernel.shape[3]))
    for b, h, w in np.ndindex(output.shape[:3]):
        window = padded[b, h * strides : h * strides + size, w * strides : w * strides + size]
        output[b, h, w] = np.einsum("hwc,hwcf->f", window, kernel)
    return output


def batch_norm(x, gamma, beta, mean, variance, training):
    if training:
        batch_mean = x.mean(axis=(0, 1, 2))
        batch_variance = ((x - batch_mean) ** 2).mean(axis=(0, 1, 2))
        moving = [0.9 * mean + 0.1 * batch_mean, 0.9 * variance + 0.1 * batch_variance]
        mean, variance = batch_mean, batch_variance
    else:
        moving = [mean, variance]
    return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta, moving


def phases(block):
    """Both phases in one function, compiled once: outputs of each, moving statistics after all."""

    def function(x):
        inference, training = block(x, training=False), block(x, training=True)
        return inference, training, [variable.value for variable in block.non_trainable_variables]

    return function


@every_case
def test_values_are_those_of_the_equation(case):
    block, x = block_of(case), example(case)
    oracle = NumPyBlock(block)
    inference, _ = oracle(float64(x), training=False)
    training, statistics = oracle(float64(x), training=True)
    mode = MODES[-1] if case in ("B_strides", "B_bottleneck") else FAST_MODE
    assert_close(run(mode, phases(block), x), (inference, training, statistics))
    assert block.compute_output_shape(x.shape) == inference.shape


@needs_torch
@pytest.mark.parametrize(("case", "training"), [("A_bottleneck", False), ("A_strides", True), ("C_bottleneck", True)])
def test_gradients_are_those_of_pytorch(case, training):
    block, x = block_of(case), example(case)
    outputs, expected = torch_outputs_and_gradients(block, x, training)
    coefficients = torch_coefficients(outputs.shape)
    values = [to_numpy(variable.value) for variable in block.trainable_variables]

    def function(arguments):
        with keras.StatelessScope(state_mapping=list(zip(block.trainable_variables, arguments[1:], strict=True))):
            return keras.ops.multiply(block(arguments[0], training=training), coefficients)

    # float32: sums over up to 80 places of slopes up to 30
    assert_close(gradient(FAST_MODE, function, [x, *values]), expected, 2e-5)


def torch_coefficients(shape):
    """Without them the sum of what a norm gives is constant: the gradient would be 0."""
    return np.random.default_rng(2).normal(size=shape).astype("float32")


def torch_outputs_and_gradients(block, x, training):
    """By PyTorch in float64: the outputs, and the gradients for the inputs and each trainable weight, in order."""
    import torch
    from torch.nn import functional

    leaves = {variable.path: torch.tensor(float64(variable.value)) for variable in block.weights}
    inputs = torch.tensor(float64(x))
    trainable = [inputs, *(leaves[variable.path] for variable in block.trainable_variables)]
    for leaf in trainable:
        leaf.requires_grad_()

    def convolution_and_norm(x, convolution, norm, strides):
        kernel = leaves[convolution.kernel.path].permute(3, 2, 0, 1)
        x = functional.conv2d(x, kernel, stride=strides, padding=kernel.shape[-1] // 2)
        gamma, beta, mean, variance = (leaves[weight.path] for weight in norm.weights)
        return functional.batch_norm(x, mean.clone(), variance.clone(), gamma, beta, training, eps=1e-5)

    given = x = inputs.permute(0, 3, 1, 2)
    for number, (convolution, norm) in enumerate(zip(block.convolutions, block.norms, strict=True)):
        strides = block.strides if number == (1 if block.bottleneck else 0) else 1
        x = convolution_and_norm(torch.relu(x) if number else x, convolution, norm, strides)
    if block.projection is None:
        given = given[:, :, :: block.strides, :: block.strides]
        given = functional.pad(given, (0, 0, 0, 0, 0, x.shape[1] - given.shape[1]))
    else:
        given = convolution_and_norm(given, block.projection, block.projection_norm, block.strides)
    outputs = (x + given).permute(0, 2, 3, 1)
    (outputs * torch.tensor(torch_coefficients(outputs.shape))).sum().backward()
    return outputs.detach().numpy(), [leaf.grad.numpy() for leaf in trainable]


def test_the_derivative_is_that_of_s2():
    """S2: for `h = f(x) + x`, `y = g(h) + h` the derivative is `g'(h) f'(x) + g'(h) + f'(x) + 1`."""
    places, size = (2, 3, C), 2 * 3 * C
    first, second = (draw(block_of("identity"), seed) for seed in (3, 4))
    f, g = (NumPyBlock(block) for block in (first, second))
    x = np.random.default_rng(5).normal(size=(1, *places)).astype("float32")
    h = f(float64(x), training=False)[0]

    def jacobian(branch, x):
        """By central differences, `(outputs, inputs)`."""
        columns = []
        for number in range(size):
            step = np.zeros(size)
            step[number] = 1e-6
            step = step.reshape(x.shape)
            ahead, behind = (branch(x + sign * step, training=False)[0].ravel() for sign in (1, -1))
            columns.append((ahead - behind) / 2e-6)
        return np.stack(columns, axis=1)

    # Row i of a batch of equal images gives output i alone: the gradient for the images is the Jacobian.
    pick = np.eye(size, dtype="float32").reshape(size, *places)
    found = gradient(
        FAST_MODE, lambda x: keras.ops.multiply(second(first(x)), pick), np.repeat(x, size, axis=0)
    ).reshape(size, size)
    f_slope, g_slope = jacobian(f.branch, float64(x)), jacobian(g.branch, h)
    # float32 slopes up to 10
    assert_close(found, g_slope @ f_slope + g_slope + f_slope + np.eye(size), 5e-6)
    assert np.abs(g_slope).max() > 0.3 < np.abs(f_slope).max()


@pytest.mark.parametrize("case", ["identity", "kernel_5_identity", "bottleneck_identity"])
def test_a_branch_of_zeros_leaves_the_inputs_as_they_are(case):
    channels = 8
    arguments = {"kernel_size": 5} if case.startswith("kernel") else {}
    bottleneck = case.startswith("bottleneck")
    block = ResidualBlock(2 if bottleneck else 8, bottleneck=bottleneck, kernel_initializer=NumPyNormal(), **arguments)
    block.build((None, None, None, channels))
    draw(block)
    for weight in (block.norms[-1].gamma, block.norms[-1].beta):
        weight.assign(np.zeros(channels))
    x = np.random.default_rng(6).normal(size=(B, 4, 3, channels)).astype("float32")
    for outputs in run(FAST_MODE, phases(block), x)[:2]:
        np.testing.assert_array_equal(outputs, x)


def weights_of(*kernels):
    """Convolutions without bias, `(kernel_size, from, to)`, each with a norm of four numbers a channel."""
    return sum(size * size * before * after + 4 * after for size, before, after in kernels)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ({"filters": 3, "shortcut": "A"}, weights_of((3, 3, 3), (3, 3, 3))),
        ({"filters": 5, "shortcut": "A", "strides": 2}, weights_of((3, 3, 5), (3, 5, 5))),
        ({"filters": 3, "shortcut": "B"}, weights_of((3, 3, 3), (3, 3, 3))),
        ({"filters": 3, "shortcut": "B", "strides": 2}, weights_of((3, 3, 3), (3, 3, 3), (1, 3, 3))),
        ({"filters": 5, "shortcut": "B"}, weights_of((3, 3, 5), (3, 5, 5), (1, 3, 5))),
        ({"filters": 3, "shortcut": "C"}, weights_of((3, 3, 3), (3, 3, 3), (1, 3, 3))),
        ({"filters": 2, "bottleneck": True}, weights_of((1, 3, 2), (3, 2, 2), (1, 2, 8), (1, 3, 8))),
        (
            {"filters": 2, "bottleneck": True, "shortcut": "A", "kernel_size": 5},
            weights_of((1, 3, 2), (5, 2, 2), (1, 2, 8)),
        ),
    ],
)
def test_a_shortcut_has_weights_only_where_it_projects(arguments, count):
    block = ResidualBlock(**arguments, kernel_initializer=NumPyNormal())
    block.build((None, None, None, C))
    assert block.count_params() == count
    assert (block.projection is not None) == (
        block.shortcut == "C" or (block.shortcut == "B" and arguments != {"filters": 3, "shortcut": "B"})
    )


@pytest.mark.parametrize("before", [False, True])
def test_a_frozen_block_keeps_and_uses_its_statistics(before):
    block = ResidualBlock(4, strides=2, kernel_initializer=NumPyNormal())
    block.trainable = not before
    block.build((None, None, None, C))
    block.trainable = False
    draw(block)
    x, statistics = example("B_strides"), [to_numpy(weight.value) for weight in block.weights]
    inference, training, moving = run(FAST_MODE, phases(block), x)
    np.testing.assert_array_equal(training, inference)
    assert_close(training, NumPyBlock(block)(float64(x), training=False)[0])
    assert block.trainable_variables == [] and len(moving) == len(statistics)
    assert all(np.array_equal(now, then) for now, then in zip(moving, statistics, strict=True))


@pytest.mark.parametrize("case", ["A_strides", "B_bottleneck"])
def test_channels_first_are_the_same_numbers(case):
    block, x = shared_block(case), example(case)
    first = block_of(case, data_format="channels_first")
    first.set_weights(block.get_weights())
    outputs = run(FAST_MODE, first, x.transpose(0, 3, 1, 2))
    assert_close(outputs.transpose(0, 2, 3, 1), NumPyBlock(block)(float64(x), training=False)[0])
    assert first.compute_output_shape((B, C, *x.shape[1:3])) == outputs.shape
    assert first.compute_output_shape((None, C, None, 7)) == (None, outputs.shape[1], None, 4)


def test_keras_says_the_data_format(monkeypatch):
    monkeypatch.setattr(keras.config, "image_data_format", lambda: "channels_first")
    assert ResidualBlock(3).data_format == "channels_first"
    assert ResidualBlock(3, data_format="channels_last").data_format == "channels_last"


def test_no_two_kernels_start_as_equals():
    block = ResidualBlock(C, shortcut="C", kernel_size=1, kernel_initializer=keras.initializers.HeNormal(seed=1))
    block.build((None, None, None, C))
    kernels = [to_numpy(layer.kernel.value) for layer in (*block.convolutions, block.projection)]
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (kernels[one] != kernels[other]).all()


@pytest.mark.parametrize(("dtype", "mode"), LOW_PRECISION)
def test_low_precision_is_near(dtype, mode):
    block, x = block_of("B_strides", dtype=dtype), example("B_strides")
    exact = NumPyBlock(block)(float64(x), training=False)[0]
    outputs = run(mode, block, x)
    assert keras.backend.standardize_dtype(outputs.dtype) == block.compute_dtype
    assert {variable.dtype for variable in block.weights} == {block.variable_dtype}
    # 11 and 8 bits of mantissa, through two convolutions and their norms
    assert_close(outputs, exact, 0.1 if "bfloat" in dtype else 0.015)


# JAX has float64 only where the whole process asks for it; Keras's batch normalisation on PyTorch goes by float32.
@needs_tensorflow
def test_float64():
    block, x = block_of("C_bottleneck", dtype="float64"), float64(example("C_bottleneck"))
    oracle = NumPyBlock(block)
    assert_close(run(FAST_MODE, phases(block), x)[:2], (oracle(x, False)[0], oracle(x, True)[0]), 1e-12)


def test_shapes():
    block = shared_block("B_strides_3")
    assert block(keras.Input((None, 7, C))).shape == (None, None, 3, 4)
    assert block(keras.Input((6, None, C)), training=True).shape == (None, 2, None, 4)
    assert block.compute_output_shape((None, 1, 2, C)) == (None, 1, 1, 4)


def test_configuration_and_file(tmp_path):
    arguments = {
        "filters": 5,
        "strides": 2,
        "shortcut": "C",
        "bottleneck": True,
        "kernel_size": 1,
        "data_format": "channels_first",
        "kernel_initializer": "ones",
    }
    block = ResidualBlock(**arguments)
    config = json.loads(json.dumps(block.get_config()))
    again = ResidualBlock.from_config(config)
    assert again.get_config() == block.get_config()
    default = ResidualBlock(3).get_config()
    assert all(config[name] != default[name] for name in arguments)
    assert all(getattr(again, name) == value for name, value in list(arguments.items())[:-1])

    block, x = ResidualBlock(2, strides=2, bottleneck=True, kernel_initializer="ones"), example("B_bottleneck")
    block.build((None, None, None, C))
    draw(block)
    keras.Sequential([keras.Input((None, None, C)), block]).save(tmp_path / "model.keras")
    outputs = run(FAST_MODE, keras.saving.load_model(tmp_path / "model.keras"), x)
    assert_close(outputs, NumPyBlock(block)(float64(x), training=False)[0])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filters": 0}, "`filters` must be a positive integer. Received: filters=0"),
        ({"strides": 1.5}, "strides=1.5"),
        ({"kernel_size": (3, 3)}, "kernel_size="),
        ({"shortcut": "D"}, r"`shortcut` must be one of \('A', 'B', 'C'\). Received: shortcut='D'"),
        ({"data_format": "x"}, "`data_format` must be one of .* Received: data_format='x'"),
        ({"kernel_initializer": "nope"}, "nope"),
    ],
)
def test_wrong_arguments_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        ResidualBlock(**{"filters": 3, **arguments})


def test_wrong_shapes_are_errors():
    with pytest.raises(
        ValueError, match=r'only adds channels. Received: 3 channels for a block that gives 2. Take .*"B"'
    ):
        ResidualBlock(2, shortcut="A").build((None, 5, 5, 3))
    with pytest.raises(ValueError, match="The channels must have a known size. Received: input_shape="):
        ResidualBlock(2).build((None, 5, 5, None))
    with pytest.raises(ValueError, match="expected ndim=4, found ndim=3"):
        ResidualBlock(2)(np.zeros((5, 5, 3)))
    with pytest.raises(ValueError, match="to have value 3"):
        shared_block("identity")(np.zeros((B, 5, 5, C + 1)))
