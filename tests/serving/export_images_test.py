"""What a SavedModel of images gives is what the model gives, for arrays and for image files."""

import io
import json

import keras
import numpy as np
import pytest

from keras_lt.models import HighwayNetwork, LeNet, ResNet
from keras_lt.serving import export_saved_model
from testing import BACKEND, assert_close, fresh_process, needs_tensorflow, to_numpy

tf = pytest.importorskip("tensorflow")

NAMES = ["zéro", "one", "two"]
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 17, 19, 3), "uint8")


def png(image, mode=None):
    """The file of an image, as another library writes it."""
    pillow = pytest.importorskip("PIL.Image")
    file = io.BytesIO()
    picture = pillow.fromarray(image.squeeze())
    (picture.convert(mode) if mode else picture).save(file, format="PNG")
    return file.getvalue()


def classify(signatures, files):
    outputs = signatures["classify"](images=tf.constant(files, tf.string))
    return [label.decode() for label in outputs["labels"].numpy()], outputs["probabilities"].numpy()


def softmax(logits):
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def colours(tmp_path_factory):
    """A model of three channels first, without an activation at its end, and its signatures."""
    keras.utils.set_random_seed(3)
    model = LeNet(3, data_format="channels_first", classifier_activation=None, image_shape=(3, 17, 19))
    model.set_weights([weight + 0.05 for weight in model.get_weights()])
    names = np.array(NAMES) if BACKEND == "tensorflow" else None
    path = export_saved_model(model, tmp_path_factory.mktemp("colours"), class_names=names)
    return model, path, tf.saved_model.load(path).signatures


@pytest.fixture(scope="module")
def grey(tmp_path_factory):
    """A residual network of one channel."""
    keras.utils.set_random_seed(4)
    model = ResNet(3, blocks=(1, 1), filters=(2, 3), stem="large", image_shape=(17, 19, 1))
    # As after training: statistics that are not those of the batch.
    model.set_weights([weight + 0.1 for weight in model.get_weights()])
    return model, tf.saved_model.load(export_saved_model(model, tmp_path_factory.mktemp("grey"))).signatures


def test_arrays(colours):
    model, _, signatures = colours
    images = np.random.default_rng(1).random((5, 3, 17, 19), "float32")
    assert_close(signatures["serving_default"](images=tf.constant(images))["logits"].numpy(), to_numpy(model(images)))
    assert list(signatures["serving_default"].structured_input_signature[1]) == ["images"]


def test_batch_normalisation_keeps_its_statistics_and_any_size_passes(grey):
    model, signatures = grey
    for shape in [(2, 17, 19, 1), (1, 23, 9, 1)]:
        images = np.random.default_rng(2).random(shape, "float32")
        served = [signatures["serving_default"](images=tf.constant(images))["probabilities"].numpy() for _ in range(2)]
        assert_close(served[0], to_numpy(model(images, training=False)))
        np.testing.assert_array_equal(*served)


@needs_tensorflow
def test_image_files_in_a_process_without_keras(colours, tmp_path):
    model, path, _ = colours
    for number, image in enumerate(IMAGES):
        (tmp_path / f"{number}.png").write_bytes(png(image))
    code = """
        import json, pathlib, sys

        sys.modules["keras"] = sys.modules["keras_lt"] = None
        import tensorflow as tf

        files = [path.read_bytes() for path in sorted(pathlib.Path(sys.argv[2]).glob("*.png"))]
        outputs = tf.saved_model.load(sys.argv[1]).signatures["classify"](images=tf.constant(files))
        labels = [label.decode() for label in outputs["labels"].numpy()]
        print("\\n" + json.dumps([labels, outputs["probabilities"].numpy().tolist()]))
    """
    labels, probabilities = json.loads(fresh_process(code, path, tmp_path).splitlines()[-1])
    expected = softmax(to_numpy(model(np.moveaxis(IMAGES, 3, 1).astype("float32") / 255)))
    assert_close(np.array(probabilities), expected)
    assert labels == [NAMES[number] for number in expected.argmax(axis=1)]


@needs_tensorflow
def test_kinds_of_files(colours, grey):
    """Grey files for a model of colours, colours for one of grey, an alpha channel, JPEG, and mixed batches."""
    (_, _, of_colours), (model, of_grey) = colours, grey
    shades = IMAGES[0, :, :, :1]
    _, once = classify(of_colours, [png(shades)])
    _, thrice = classify(of_colours, [png(np.repeat(shades, 3, axis=2))])
    np.testing.assert_array_equal(once, thrice)
    mixed = classify(of_colours, [png(IMAGES[0]), png(IMAGES[0], "RGBA"), png(shades)])[1]
    np.testing.assert_array_equal(mixed[0], mixed[1])
    assert_close(mixed[2:], once)
    labels, probabilities = classify(of_grey, [png(IMAGES[1])])
    expected = to_numpy(model(IMAGES[1:2] @ np.array([[0.299], [0.587], [0.114]], "float32") / 255))
    assert_close(probabilities, expected, 1e-5)  # a mean over all places of sums in another order
    assert labels == [str(expected.argmax())]
    smooth = np.repeat(np.linspace(0, 255, 17 * 19).reshape(17, 19, 1), 3, axis=2).astype("uint8")
    jpeg = tf.io.encode_jpeg(smooth, quality=100).numpy()
    assert_close(classify(of_colours, [jpeg])[1], classify(of_colours, [png(smooth)])[1], 0.02)  # JPEG loses something


@needs_tensorflow
def test_files_are_resized(colours):
    """An image of which each pixel stands twice in both directions shrinks to the image."""
    _, _, signatures = colours
    doubled = IMAGES[2].repeat(2, axis=0).repeat(2, axis=1)
    flat = np.full((5, 40, 3), 77, "uint8")
    small, large, even, same = classify(
        signatures, [png(IMAGES[2]), png(doubled), png(flat), png(np.full((17, 19, 3), 77, "uint8"))]
    )[1]
    assert np.abs(small - large).max() < np.abs(small - even).max() / 4
    assert_close(even, same)


@needs_tensorflow
def test_empty_batches_and_files_that_are_none(colours):
    _, _, signatures = colours
    assert classify(signatures, [])[1].shape == (0, 3)
    assert signatures["serving_default"](images=tf.zeros((0, 3, 17, 19)))["logits"].shape == (0, 3)
    for wrong in (b"", b"no image", png(IMAGES[0])[:60]):
        with pytest.raises(tf.errors.InvalidArgumentError):
            classify(signatures, [png(IMAGES[0]), wrong])


@needs_tensorflow
def test_mixed_precision_answers_in_float32(tmp_path):
    model = HighwayNetwork(3, num_layers=2, hidden_dim=5, image_shape=(17, 19, 3), dtype="mixed_bfloat16")
    signatures = tf.saved_model.load(export_saved_model(model, tmp_path)).signatures
    outputs = signatures["serving_default"](images=tf.constant(IMAGES / 255, "float32"))
    assert outputs["probabilities"].dtype == tf.float32
    assert_close(outputs["probabilities"].numpy(), to_numpy(model(IMAGES)), 1e-2)  # steps of bfloat16


def test_wrong_models_and_names(tmp_path):
    with pytest.raises(ValueError, match=r"no weights yet.*`image_shape`"):
        export_saved_model(LeNet(), tmp_path)
    model = HighwayNetwork(3, num_layers=1, hidden_dim=2, image_shape=(2, 2, 1))
    if BACKEND == "tensorflow":
        for names in (["a", "b"], [1, 2, 3], "abc", {"a", "b", "c"}, 3):
            with pytest.raises(ValueError, match="`class_names` must be 3 strings"):
                export_saved_model(model, tmp_path, class_names=names)
        five = HighwayNetwork(3, num_layers=1, hidden_dim=2, image_shape=(2, 2, 5))
        with pytest.raises(ValueError, match="`classify`: image files have one or three channels, the model takes 5"):
            export_saved_model(five, tmp_path, class_names=NAMES)
        any_size = ResNet(3, blocks=(1,), filters=(2,), image_shape=(None, None, 3))
        with pytest.raises(ValueError, match=r"`classify`: .*images of any size.*`image_shape`"):
            export_saved_model(any_size, tmp_path, class_names=NAMES)
    else:
        with pytest.raises(ValueError, match="`classify`: .*TensorFlow backend"):
            export_saved_model(model, tmp_path, class_names=NAMES)
    with pytest.raises(TypeError, match="a model of images of keras_lt"):
        export_saved_model(keras.Sequential(), tmp_path / "new")
    assert list(tmp_path.iterdir()) == []
