"""ResNet: the published sizes, PyTorch's numbers in torchvision's arrangement, and transfer."""

import keras
import numpy as np
import pytest

from keras_lt.models import ResNet
from testing import BACKEND, MODES, assert_close, needs_torch, run, to_numpy

# XLA takes longer to compile a training step than these tests to run it; JAX has nothing between XLA and one op a time.
JIT = False if BACKEND == "tensorflow" else "auto"
FAST_MODE = "jit" if BACKEND == "jax" else "eager"
B, CLASSES = 2, 4


def built(*args, **arguments):
    """A model whose kernels start at 0: Keras's initializers compile a program for each shape on JAX."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.initializers.VarianceScaling, "__call__", keras.initializers.Zeros().__call__)
        return ResNet(*args, **arguments)


def small(channels=3, **arguments):
    """A model in which every weight matters, variances above 0."""
    sizes = {"blocks": (1, 2), "filters": (3, 5), "image_shape": (None, None, channels)}
    model = built(CLASSES, **{**sizes, **arguments})
    random = np.random.default_rng(0)
    for weight in model.weights:
        values = random.normal(0, 0.3, weight.shape)
        weight.assign(np.abs(values) + 0.5 if weight.path.endswith(("gamma", "variance")) else values)
    return model


def example(*shape):
    return np.random.default_rng(1).normal(size=(B, *shape)).astype("float32")


def trainable_count(**arguments):
    return sum(int(np.prod(weight.shape)) for weight in built(**arguments).trainable_weights)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        # He et al. (2016), as torchvision gives them
        ({"blocks": (2, 2, 2, 2)}, 11_689_512),
        ({"blocks": (3, 4, 6, 3), "bottleneck": True}, 25_557_032),
    ],
)
def test_number_of_parameters_of_imagenets_networks(arguments, count):
    arguments = {**arguments, "filters": (64, 128, 256, 512), "stem": "large", "image_shape": (224, 224, 3)}
    assert trainable_count(num_classes=1000, **arguments) == count


@pytest.mark.parametrize(("depth", "count"), [(20, 269_722), (32, 464_154), (56, 853_018)])
def test_number_of_parameters_of_cifars_networks(depth, count):
    blocks = ((depth - 2) // 6,) * 3
    assert trainable_count(num_classes=10, blocks=blocks, shortcut="A", image_shape=(32, 32, 3)) == count


def torchvision(model, images, training):
    """Features and probabilities by PyTorch in float64, its layers in the order that torchvision has them in."""
    import torch
    from torch.nn import functional

    def tensor(variable):
        return torch.tensor(to_numpy(variable.value).astype("float64"))

    def convolution(x, layer, stride, padding):
        return functional.conv2d(x, tensor(layer.kernel).permute(3, 2, 0, 1), stride=stride, padding=padding)

    def norm(x, layer):
        gamma, beta, mean, variance = (tensor(weight) for weight in layer.weights)
        return functional.batch_norm(x, mean, variance, gamma, beta, training, eps=1e-5)

    large = model.stem == "large"
    x = torch.tensor(images.astype("float64")).permute(0, 3, 1, 2)
    x = convolution(x, model.stem_convolution, 2 if large else 1, 3 if large else 1)
    x = torch.relu(norm(x, model.stem_norm))
    if large:
        x = functional.max_pool2d(x, 3, 2, 1)
    blocks = iter(model.residual_blocks)
    for stage, number in enumerate(model.blocks):
        for place in range(number):
            block, stride, identity = next(blocks), 2 if stage and not place else 1, x
            forms = [(1, 0), (stride, 1), (1, 0)] if model.bottleneck else [(stride, 1), (1, 1)]
            for index, form in enumerate(forms):
                x = norm(convolution(x, block.convolutions[index], *form), block.norms[index])
                x = torch.relu(x) if index < len(forms) - 1 else x
            if model.shortcut == "C" or (model.shortcut == "B" and identity.shape != x.shape):
                identity = norm(convolution(identity, block.projection, stride, 0), block.projection_norm)
            identity = identity[:, :, ::stride, ::stride] if identity.shape[2:] != x.shape[2:] else identity
            identity = functional.pad(identity, (0, 0, 0, 0, 0, x.shape[1] - identity.shape[1]))
            x = torch.relu(x + identity)
    x = x.mean(dim=(2, 3))
    outputs = torch.softmax(x @ tensor(model.classifier.kernel) + tensor(model.classifier.bias), dim=1)
    return x.numpy(), outputs.numpy()


def phases(model):
    """Features and outputs, and the outputs in training, in one function that is compiled once."""
    return lambda images: (model(images, return_features=True), model(images), model(images, training=True))


@needs_torch
@pytest.mark.parametrize(
    ("arguments", "channels", "mode"),
    [
        ({}, 3, FAST_MODE),
        ({"bottleneck": True, "stem": "large"}, 1, MODES[-1]),
        ({"shortcut": "A", "stem": "large"}, 3, FAST_MODE),
        ({"shortcut": "C", "bottleneck": True}, 1, FAST_MODE),
    ],
)
def test_values_are_those_of_pytorch(arguments, channels, mode):
    model, images = small(channels, **arguments), example(13, 12, channels)
    features, outputs = torchvision(model, images, training=False)
    expected = features, outputs, torchvision(model, images, training=True)[1]
    # float32, through up to 10 convolutions and norms, features up to 4
    assert_close(run(mode, phases(model), images), expected, 5e-6)
    assert np.abs(outputs[0] - outputs[1]).max() > 1e-3


@needs_torch
def test_images_of_other_sizes_pass_after_the_first():
    model = small(image_shape=(6, 7, 3))
    for shape in ((6, 7, 3), (9, 4, 3), (1, 1, 3)):
        found = run(FAST_MODE, model, example(*shape))
        assert_close(found, torchvision(model, example(*shape), training=False)[1], 5e-6)


def test_features():
    for arguments, width in (({}, 5), ({"bottleneck": True}, 20)):
        model = small(**arguments)
        images = keras.Input((None, None, 3))
        assert model(images, return_features=True).shape == (None, width)
        assert model(images).shape == (None, CLASSES)
        assert model.classifier.kernel.shape[0] == width


def fit(model):
    model.compile(jit_compile=JIT)
    model.fit(example(6, 7, 3), np.array([1, 2]), epochs=2, verbose=0)


def test_a_frozen_part_stays_as_it_is_in_training():
    model = small()
    frozen = [model.stem_convolution, model.stem_norm, model.residual_blocks[1]]
    for layer in frozen:
        layer.trainable = False
    before = {weight.path: to_numpy(weight.value) for weight in model.weights}
    fit(model)
    kept = {weight.path for layer in frozen for weight in layer.weights}
    assert sum("moving" in path for path in kept) == 2 * 4
    for weight in model.weights:
        assert np.array_equal(to_numpy(weight.value), before[weight.path]) == (weight.path in kept), weight.path


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_frozen_model_gives_its_features_to_another(when):
    base = small(image_shape=None if when == "before" else (None, None, 3))
    base.trainable = False
    inputs = keras.Input((6, 7, 3))
    model = keras.Model(
        inputs, keras.layers.Dense(3, "softmax", kernel_initializer="ones")(base(inputs, return_features=True))
    )
    before = base.get_weights()
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=JIT)
    model.fit(example(6, 7, 3), np.array([1, 2]), epochs=2, verbose=0)
    assert len(before) == len(base.get_weights()) > 0
    assert all(np.array_equal(*pair) for pair in zip(before, base.get_weights(), strict=True))
    assert [tuple(weight.shape) for weight in model.trainable_weights] == [(5, 3), (3,)]
    assert np.ptp(to_numpy(model.trainable_weights[0].value)) > 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"blocks": ()}, "`blocks` must be a tuple of one or more positive integers"),
        ({"filters": (16, 32, 0)}, "`filters` must be a tuple of one or more positive integers"),
        ({"blocks": (1, 2)}, r"one number of filters a stage. Received: blocks=\(1, 2\), filters=\(16, 32, 64\)"),
        ({"shortcut": "D"}, r"`shortcut` must be one of \('A', 'B', 'C'\). Received: shortcut='D'"),
        ({"stem": "medium"}, r"`stem` must be one of \('small', 'large'\). Received: stem='medium'"),
        ({"image_shape": (8, 8, None)}, "known sizes above 0"),
        ({"filters": (4, 2, 8), "shortcut": "A", "image_shape": (8, 8, 1)}, 'only adds channels.* Take shortcut="B"'),
    ],
)
def test_wrong_arguments_are_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        built(3, **arguments)


def test_it_learns():
    """The direction of stripes, whose phase is any, checked on images it has not seen, by the moving statistics."""
    random = np.random.default_rng(3)

    def draw(count):
        labels, phases = random.integers(0, 2, count), random.uniform(0, 6, count)
        rows, columns = np.mgrid[:8, :8]
        places = np.where(labels[:, None, None] == 1, rows, columns)
        images = np.sin(2 * places + phases[:, None, None]) + random.normal(0, 0.1, places.shape)
        return images[..., None], labels

    keras.utils.set_random_seed(1)
    model = ResNet(2, (1, 1), (4, 6), image_shape=(8, 8, 1))
    model.compile(jit_compile=JIT)
    (images, labels), unseen = draw(96), draw(64)
    before = model.evaluate(*unseen, verbose=0)[1]
    model.fit(images, labels, epochs=20, verbose=0)
    assert before < 0.9
    for data in ((images, labels), unseen):
        assert model.evaluate(*data, verbose=0)[1] == 1
