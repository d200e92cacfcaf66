"""LeNet against NumPy written from S1, output by output, and against PyTorch."""

import keras
import numpy as np
import pytest

from keras_lt.models import LeNet
from testing import BACKEND, MODES, assert_close, gradient, needs_torch, run, to_numpy

# XLA takes longer to compile a training step than these tests to run it; JAX has nothing between XLA and one op a time.
JIT = False if BACKEND == "tensorflow" else "auto"
LEAN_MODES = [mode for mode in MODES if (BACKEND, mode) != ("jax", "eager")]
# Every size another: the images leave rests at both borders, the last feature map is 3 x 2.
B, H, W, C = 2, 19, 23, 3
SIZES = {"num_classes": 8, "filters": (4, 5), "kernel_size": (3, 2), "pool_size": (2, 3), "hidden_units": (7, 6)}


def built(*args, **arguments):
    """A model whose kernels start at 0: Keras's initializers compile a program for each shape on JAX."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.initializers.VarianceScaling, "__call__", keras.initializers.Zeros().__call__)
        return LeNet(*args, **arguments)


def small(channels=C, **arguments):
    """A model with weights from NumPy, large enough for every one to matter."""
    first = arguments.get("data_format") == "channels_first"
    model = built(**SIZES, **arguments, image_shape=(channels, H, W) if first else (H, W, channels))
    random = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(random.normal(0, 0.3, weight.shape))
    return model


def example(channels=C):
    return np.random.default_rng(1).normal(size=(B, H, W, channels)).astype("float32")


def s1_forward(model, image):
    """S1's equations for one image `(chans, height, width)`: `X^3`, the last of them if several, and `O`."""
    x = image.astype("float64")
    for convolution in [layer for layer in model.feature_layers if "convolution" in layer.name]:
        # W^l is (chans', chans, kh, kw)
        kernel = to_numpy(convolution.kernel.value).transpose(3, 2, 0, 1).astype("float64")
        bias = to_numpy(convolution.bias.value).astype("float64")
        x = max_pool(np.maximum(convolve(x, kernel, bias), 0), *model.pool_size)
    x = x.transpose(1, 2, 0).ravel()  # (height, width, chans) -> layer
    for dense in [layer for layer in model.feature_layers if "hidden" in layer.name]:
        kernel = to_numpy(dense.kernel.value).astype("float64").reshape(len(x), -1)
        x = np.maximum(x @ kernel + to_numpy(dense.bias.value), 0)
    powers = np.exp(
        x @ to_numpy(model.classifier.kernel.value).astype("float64") + to_numpy(model.classifier.bias.value)
    )
    return x, powers / powers.sum()


def convolve(x, kernel, bias):
    chans, _, kh, kw = kernel.shape
    output = np.empty((chans, x.shape[1] - kh + 1, x.shape[2] - kw + 1))
    for c, h, w in np.ndindex(output.shape):
        output[c, h, w] = (kernel[c] * x[:, h : h + kh, w : w + kw]).sum() + bias[c]
    return output


def max_pool(x, ph, pw):
    output = np.empty((len(x), x.shape[1] // ph, x.shape[2] // pw))
    for c, h, w in np.ndindex(output.shape):
        output[c, h, w] = x[c, h * ph : h * ph + ph, w * pw : w * pw + pw].max()
    return output


@pytest.mark.parametrize("mode", LEAN_MODES)
@pytest.mark.parametrize("flatten", [True, False])
def test_values_are_those_of_s1(mode, flatten):
    model, images = small(flatten=flatten), example()
    features, outputs = zip(*(s1_forward(model, image.transpose(2, 0, 1)) for image in images), strict=True)
    found = run(mode, lambda images: (model(images, return_features=True), model(images)), images)
    assert_close(found, (np.stack(features), np.stack(outputs)), 2e-6)  # features up to 5, in float32
    assert np.abs(outputs[0] - outputs[1]).max() > 0.01


@needs_torch
def test_values_and_gradients_are_those_of_pytorch():
    import torch
    from torch.nn import functional

    model, images = small(channels=1), example(channels=1)
    coefficients = np.random.default_rng(2).normal(size=(B, SIZES["num_classes"])).astype("float32")
    values = [to_numpy(variable.value) for variable in model.trainable_variables]
    leaves = [torch.tensor(array.astype("float64"), requires_grad=True) for array in (images, *values)]

    x = leaves[0].permute(0, 3, 1, 2)
    for kernel, bias in (leaves[1:3], leaves[3:5]):
        x = functional.max_pool2d(
            torch.relu(functional.conv2d(x, kernel.permute(3, 2, 0, 1), bias)), SIZES["pool_size"]
        )
    x = x.permute(0, 2, 3, 1).flatten(1)
    for kernel, bias in (leaves[5:7], leaves[7:9]):
        x = torch.relu(x @ kernel.reshape(x.shape[1], -1) + bias)
    expected = torch.softmax(x @ leaves[9] + leaves[10], dim=1)
    (expected * torch.tensor(coefficients)).sum().backward()

    def function(arguments):
        with keras.StatelessScope(state_mapping=list(zip(model.trainable_variables, arguments[1:], strict=True))):
            return keras.ops.multiply(model(arguments[0]), coefficients)

    assert_close(run(LEAN_MODES[0], model, images), expected.detach().numpy())
    slopes = gradient(LEAN_MODES[0], function, [images, *values])
    assert_close(slopes, [leaf.grad.numpy() for leaf in leaves])
    assert min(np.abs(slope).max() for slope in slopes) > 1e-3


def test_flattened_or_not_both_start_as_equals():
    models = []
    for flatten in (True, False):
        keras.utils.set_random_seed(5)
        models.append(LeNet(5, (2,), 3, hidden_units=(4,), flatten=flatten, image_shape=(6, 8, 1)))
    kernels = [tuple(model.feature_layers[-1].kernel.shape) for model in models]
    assert kernels == [(2 * 3 * 2, 4), (2, 3, 2, 4)]
    for one, other in zip(models[0].weights, models[1].weights, strict=True):
        one, other = to_numpy(one.value), to_numpy(other.value)
        np.testing.assert_array_equal(one, other.reshape(one.shape))
    assert all(np.ptp(to_numpy(weight.value)) > 0 for weight in models[1].weights if "kernel" in weight.path)


def test_channels_first_train_to_the_same_numbers():
    images, labels, trained = example(), np.array([3, 7]), {}
    for name in ("channels_last", "channels_first"):
        model = small(data_format=name)
        before = model.get_weights()
        model.compile(jit_compile=JIT)
        model.fit(images.transpose(0, 3, 1, 2) if name == "channels_first" else images, labels, verbose=0)
        trained[name] = model.get_weights()
    assert_close(trained["channels_first"], trained["channels_last"])
    # The first step of SmoothedRMS moves a weight by 0.01 * 0.1 / sqrt(0.1), whatever its gradient.
    steps = [np.abs(after - weight).max() for after, weight in zip(trained["channels_first"], before, strict=True)]
    assert_close(np.array(steps), np.full(len(steps), 0.001 / np.sqrt(0.1)))


@pytest.mark.parametrize(
    ("arguments", "smallest"),
    [
        ({}, (16, 16)),  # 16 - 4 -> 6 - 4 -> 1
        ({"kernel_size": (3, 2), "pool_size": (2, 3)}, (10, 13)),  # 10 - 2 -> 4 - 2 -> 1 and 13 - 1 -> 4 - 1 -> 1
        ({"filters": (2, 3, 4), "kernel_size": 3, "pool_size": (1, 2)}, (7, 22)),
    ],
)
def test_images_may_not_be_too_small(arguments, smallest):
    height, width = smallest
    for shape in ((height - 1, width, 1), (height, width - 1, 1)):
        with pytest.raises(ValueError, match=f"at least {height} x {width} .* Received: {shape[0]} x {shape[1]}"):
            LeNet(**arguments, image_shape=shape)
    model = built(**arguments, image_shape=(height, width, 1))
    assert model.feature_layers[-1].kernel.shape[0] == model.filters[-1]  # one place is left
    assert run(LEAN_MODES[0], model, np.ones((1, height, width, 1), "float32")).shape == (1, 10)
    with pytest.raises(ValueError, match=f"at least {height} x {width}"):
        LeNet(**arguments)(np.ones((1, height - 1, width, 1)))


def test_number_of_parameters():
    convolutions = (5 * 5 * 1 * 6 + 6) + (5 * 5 * 6 * 16 + 16)
    default = convolutions + (4 * 4 * 16 * 120 + 120) + (120 * 10 + 10)
    assert built(image_shape=(28, 28, 1)).count_params() == default == 34_622
    assert built(flatten=False, image_shape=(28, 28, 1)).count_params() == 34_622
    lenet_5 = convolutions + (4 * 4 * 16 * 120 + 120) + (120 * 84 + 84) + (84 * 10 + 10)
    assert built(hidden_units=(120, 84), image_shape=(28, 28, 1)).count_params() == lenet_5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"filters": ()}, r"`filters` must be a tuple of one or more positive integers. Received: filters=\(\)"),
        ({"filters": (6, 0)}, r"filters=\(6, 0\)"),
        (
            {"hidden_units": 0},
            "`hidden_units` must be a tuple of one or more positive integers. Received: hidden_units=0",
        ),
        ({"hidden_units": ()}, r"hidden_units=\(\)"),
        ({"kernel_size": 0}, r"`kernel_size` must be 2 positive integers. Received: kernel_size=\(0, 0\)"),
        ({"kernel_size": (5, 5, 5)}, "kernel_size="),
        ({"pool_size": 2.5}, "pool_size="),
    ],
)
def test_wrong_arguments_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        LeNet(**arguments)


def test_it_learns():
    """Which third of a noisy image is brighter, checked on images it has not seen."""
    random, places = np.random.default_rng(3), 3

    def draw(count):
        labels = random.integers(0, places, count)
        images = random.normal(0, 0.3, (count, 10, 15, 1))
        for image, label in zip(images, labels, strict=True):
            image[:, 5 * label : 5 * label + 5] += 1
        return images, labels

    keras.utils.set_random_seed(1)
    model = LeNet(places, (4, 5), 3, hidden_units=(8,), image_shape=(10, 15, 1))
    model.compile(jit_compile=JIT)
    (images, labels), unseen = draw(150), draw(60)
    before = model.evaluate(*unseen, batch_size=30, verbose=0)[1]
    model.fit(images, labels, batch_size=30, epochs=12, verbose=0)
    assert before < 0.7
    for data in ((images, labels), unseen):
        assert model.evaluate(*data, batch_size=30, verbose=0)[1] == 1
