import os
import tempfile

import keras

from keras_lt.models.image_classifier import ImageClassifier
from keras_lt.models.language_model import LanguageModel
from keras_lt.models.seq2seq_mixin import Seq2SeqMixin
from keras_lt.serving import image_signatures, language_signatures, seq2seq_signatures
from keras_lt.text_generator import TextGenerator


def export_saved_model(model_or_generator, path, class_names=None):
    """Write a SavedModel that runs where neither keras_lt nor Keras is installed.

    Every batch size and length is dynamic. The signatures of a language model are:

    - `serving_default`: `token_ids` int32 `(B, T)` to `logits` float32 `(B, T, V)`;
    - `generate_ids`: `token_ids` int32 `(B, T)`, `prompt_lengths` int32 `(B,)` and the settings, scalars:
      `max_new_tokens` int32, `temperature` float32, `top_k` int32, `top_p` float32, `seed` int32; to `token_ids` int32
      `(B, T + max_new_tokens)`, 0 after the end of each row, and `lengths` int32 `(B,)`;
    - with a `TextGenerator` of characters or bytes also `generate`: `prompts` string `(B,)` and the same settings to
      `texts` string `(B,)`; and `score`: `texts` string `(B,)` to `log_likelihood` float32 `(B,)` and `token_counts`
      int32 `(B,)`.

    Temperature 0 is greedy; top_k 0 and top_p 1 are off. Texts, ids and scores are those of `generate` and `score` in
    Python, a seed standing for all rows. A prompt that is empty, is no UTF-8 or holds a character that the vocabulary
    lacks, an id to continue or a setting out of range: an InvalidArgument says what came. `serving_default` answers ids
    out of range, and more tokens than the model looks at, with NaN.

    Where the model reads a source, such as `TransformerSeq2Seq`, the signatures are:

    - `serving_default`: `source` int32 `(B, S)`, `source_lengths` int32 `(B,)` and `target` int32 `(B, T)` to `logits`;
    - `generate_ids`: `source`, `source_lengths` and the settings to `token_ids` int32 `(B, max_new_tokens)`, the answer
      without start and end token, and `lengths`;
    - with a `TextGenerator` of characters or bytes also `generate`: `prompts`, the sources, and the settings to
      `texts`, the answers; and `score`: `texts` and `targets` string `(B,)` to `log_likelihood` and `token_counts`.

    A model that neither goes on nor answers, `TransformerEncoder`, has `serving_default` alone.

    The signatures of a model of images are:

    - `serving_default`: `images` float32 in the model's own data format to `probabilities`, or `logits` where it has no
      `classifier_activation`, float32 `(B, num_classes)`;
    - where it was built for one or three channels and a known height and width also `classify`: `images` string `(B,)`,
      each an encoded PNG, JPEG, GIF (of which the first frame counts) or BMP without a palette, to `labels` string
      `(B,)` and `probabilities` float32 `(B, num_classes)`. The files are decoded, made grey for a model of one
      channel, resized bilinearly (which averages where it shrinks) and scaled to 0 to 1; transparency is dropped.
      They must look like those of the training: the digits' ink is white, their paper black. What is no such file is
      an InvalidArgument.

    On JAX, Keras turns the model's call into TensorFlow, and there is `serving_default` only, for batches of one or
    more.

    Args:
        model_or_generator: `keras_lt.TextGenerator`, a language model such as `keras_lt.models.LittleTransformer`, or a
            model of images such as `keras_lt.models.LeNet`.
        path: Directory of the versions, as TensorFlow Serving reads it. It is made if it is not there. The model is
            written to a hidden directory in it and then renamed, so that a server never sees a half.
        class_names: List or array of strings, the labels of a model of images. Defaults to `None`, the numbers of the
            classes.

    Returns:
        The directory written, `path/1` or the next free number.

    Raises:
        TypeError: If it is no such model.
        ValueError: If a model of images is not built, or `class_names` are not as many as classes, or given for a model
            that has no `classify`.
        ImportError: If TensorFlow is not installed.

    Example:

    ```python
    keras_lt.serving.export_saved_model(keras_lt.TextGenerator.load("runs/little"), "served/little")
    ```
    """
    is_generator = isinstance(model_or_generator, TextGenerator)
    model = model_or_generator.model if is_generator else model_or_generator
    if not isinstance(model, (LanguageModel, ImageClassifier)):
        raise TypeError(
            "`model_or_generator` must be a TextGenerator, a language model or a model of images of keras_lt. "
            f"Received: {type(model_or_generator).__name__}. Other Keras models have `model.export(path)`"
        )
    if keras.config.backend() not in ("tensorflow", "jax"):
        raise ValueError(
            "A SavedModel is written from TensorFlow or JAX. Load the model with KERAS_BACKEND=tensorflow. "
            f"Received: the backend {keras.config.backend()}"
        )
    try:
        import tensorflow  # noqa: F401
    except ImportError as error:
        raise ImportError("A SavedModel is written by TensorFlow: pip install tensorflow") from error
    if isinstance(model, ImageClassifier):
        endpoints = image_signatures.endpoints(model, class_names)
    elif class_names is not None:
        raise ValueError(f"`class_names` are for a model of images. Received: {type(model).__name__}")
    else:
        signatures = seq2seq_signatures if isinstance(model, Seq2SeqMixin) else language_signatures
        endpoints = signatures.endpoints(model, model_or_generator.tokenizer if is_generator else None)
    path = os.fspath(path)
    os.makedirs(path, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=path) as folder:
        unfinished = os.path.join(folder, "model")
        archive = keras.export.ExportArchive()
        archive.track(model)
        # Gradients, which a server does not need, cannot be taken on JAX where sizes are left open.
        options = {"jax2tf_kwargs": {"with_gradient": False}} if keras.config.backend() == "jax" else {}
        for name, (function, signature) in endpoints.items():
            archive.add_endpoint(name, function, signature, **options)
        archive.write_out(unfinished, verbose=False)
        return _to_next_version(unfinished, path)


def _to_next_version(unfinished, path):
    version = 1 + max((int(name) for name in os.listdir(path) if name.isdecimal()), default=0)
    while True:
        target = os.path.join(path, str(version))
        try:
            os.rename(unfinished, target)
        except OSError:
            # Another process may have written that version since: rename does not replace a directory that holds files.
            if not os.path.exists(target):
                raise
            version += 1
        else:
            return target
