import functools
import os
import tempfile

import keras

from keras_lt.generation.generative_mixin import GenerativeMixin
from keras_lt.serving import signatures
from keras_lt.serving.graph_tokenizers import graph_tokenizer
from keras_lt.text_generator import TextGenerator


def export_saved_model(model_or_generator, path):
    """Write a SavedModel that runs where neither keras_lt nor Keras is installed.

    Every batch size and length is dynamic. The signatures are:

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

    On JAX, Keras turns the model's call into TensorFlow, and there is `serving_default` only.

    Args:
        model_or_generator: `keras_lt.TextGenerator`, or a language model such as `keras_lt.models.LittleTransformer`.
        path: Directory of the versions, as TensorFlow Serving reads it. It is made if it is not there. The model is
            written to a hidden directory in it and then renamed, so that a server never sees a half.

    Returns:
        The directory written, `path/1` or the next free number.

    Raises:
        TypeError: If the model is no language model.
        ImportError: If TensorFlow is not installed.

    Example:

    ```python
    keras_lt.serving.export_saved_model(keras_lt.TextGenerator.load("runs/little"), "served/little")
    ```
    """
    is_generator = isinstance(model_or_generator, TextGenerator)
    model = model_or_generator.model if is_generator else model_or_generator
    if not isinstance(model, GenerativeMixin):
        raise TypeError(
            "`model_or_generator` must be a TextGenerator or a language model of keras_lt. "
            f"Received: {type(model_or_generator).__name__}"
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
    path = os.fspath(path)
    os.makedirs(path, exist_ok=True)
    tokenizer = graph_tokenizer(model_or_generator.tokenizer) if is_generator else None
    with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=path) as folder:
        unfinished = os.path.join(folder, "model")
        _write(model, tokenizer, unfinished)
        return _to_next_version(unfinished, path)


def _write(model, tokenizer, path):
    import tensorflow as tf

    def logits(token_ids):
        return signatures.logits(model, token_ids)

    def continue_ids(token_ids, prompt_lengths, *settings):
        return signatures.generate_ids(model, token_ids, prompt_lengths, signatures.by_name(settings))

    @functools.cache
    def traced():
        # Once for both signatures that need it: it is most of the work of an export.
        with tf.init_scope():
            function = tf.function(continue_ids, input_signature=[token_ids, lengths, *settings], autograph=False)
            return function.get_concrete_function()

    def generate_ids(*inputs):
        return traced()(*inputs)

    def generate(prompts, *settings):
        return signatures.generate_texts(traced(), tokenizer, prompts, signatures.by_name(settings))

    def score(texts):
        return signatures.score_texts(model, tokenizer, texts)

    token_ids = tf.TensorSpec([None, None], "int32", name="token_ids")
    lengths = tf.TensorSpec([None], "int32", name="prompt_lengths")
    prompts, texts = (tf.TensorSpec([None], "string", name=name) for name in ("prompts", "texts"))
    settings = signatures.settings_signature()
    archive = keras.export.ExportArchive()
    archive.track(model)
    archive.add_endpoint("serving_default", logits, [token_ids])
    if keras.config.backend() == "tensorflow":
        archive.add_endpoint("generate_ids", generate_ids, [token_ids, lengths, *settings])
        if tokenizer is not None:
            archive.add_endpoint("generate", generate, [prompts, *settings])
            archive.add_endpoint("score", score, [texts])
    archive.write_out(path, verbose=False)


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
