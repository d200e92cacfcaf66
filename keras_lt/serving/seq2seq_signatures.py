"""What a served model does that reads a source, as functions of TensorFlow tensors with dynamic shapes."""

import functools

import keras
from keras import ops

from keras_lt.serving import language_signatures as language
from keras_lt.serving.graph_tokenizers import graph_tokenizer


def endpoints(model, tokenizer=None):
    """The functions of a model that reads a source by the names of their signatures, each with what it takes."""
    import tensorflow as tf

    tokenizer = None if tokenizer is None else graph_tokenizer(tokenizer)
    source, target = (tf.TensorSpec([None, None], "int32", name=name) for name in ("source", "target"))
    lengths = tf.TensorSpec([None], "int32", name="source_lengths")
    prompts, texts, targets = (tf.TensorSpec([None], "string", name=name) for name in ("prompts", "texts", "targets"))
    settings = language.settings_signature()

    def answer_ids(source, source_lengths, *settings):
        return generate_ids(model, source, source_lengths, language.by_name(settings))

    traced = language.trace_once(answer_ids, [source, lengths, *settings])
    found = {"serving_default": (functools.partial(logits, model), [source, lengths, target])}
    if keras.config.backend() == "tensorflow":
        found["generate_ids"] = (lambda *inputs: traced()(*inputs), [source, lengths, *settings])
        if tokenizer is not None:
            found["generate"] = (
                lambda prompts, *settings: generate_texts(traced(), tokenizer, prompts, language.by_name(settings)),
                [prompts, *settings],
            )
            found["score"] = (functools.partial(score_texts, model, tokenizer), [texts, targets])
    return found


def logits(model, source, source_lengths, target):
    """Logits after each token of the target, `(B, T, V)`, in float32; nothing is read behind the source lengths."""
    real = ops.arange(ops.shape(source)[1], dtype="int32") < ops.expand_dims(source_lengths, 1)
    # What stands there need not be an id.
    source = ops.where(real, source, 0)
    if keras.config.backend() == "tensorflow":
        source, real = _with_a_column(source), _with_a_column(real)
    return language.logits(model, {"source": source, "target": target, "source_padding_mask": real})


def generate_ids(model, source, source_lengths, settings):
    """Answer to sources: the new ids, 0 after them, `(B, max_new_tokens)`, and their numbers, `(B,)`."""
    import tensorflow as tf

    source = language.check_rows(model, source, source_lengths, "Sources", "source_lengths", "source")
    source_lengths = _not_too_long(model, source_lengths)
    starts = tf.fill([tf.shape(source)[0], 1], model.start_token_id)
    source = _with_mask(source, source_lengths)
    results = language.generate_ids(model, starts, tf.ones_like(starts[:, 0]), settings, source)
    return {"token_ids": results["token_ids"][:, 1:], "lengths": results["lengths"] - 1}


def generate_texts(ids_of, tokenizer, prompts, settings):
    """Answer to texts: strings `(B,)`; `ids_of` is `generate_ids`, traced before."""
    import tensorflow as tf

    results = ids_of(*language.encode(tokenizer, prompts), *settings.values())
    new = tf.sequence_mask(results["lengths"], tf.shape(results["token_ids"])[1])
    return {"texts": tokenizer.decode(tf.ragged.boolean_mask(results["token_ids"], new))}


def score_texts(model, tokenizer, texts, targets):
    """Log-likelihood in nats, float32 `(B,)`, of targets and their ends, given the texts, and the number of tokens."""
    import tensorflow as tf

    sizes = [tf.shape(texts)[0], tf.shape(targets)[0]]
    language.check(tf.equal(*sizes), "There must be a target for each text. Received:", sizes)
    source, source_lengths = language.encode(tokenizer, texts)
    source = _with_mask(source, _not_too_long(model, source_lengths))
    rows = tokenizer.encode(targets)
    starts, ends = (tf.fill([sizes[1], 1], value) for value in (model.start_token_id, model.end_token_id))
    rows = tf.concat([starts, rows, ends], axis=1)
    token_ids, lengths = language.scored_rows(rows)
    counted = tf.sequence_mask(lengths - 1, tf.shape(token_ids)[1] - 1)
    return language.scores(model, token_ids, lengths, counted, source)


def _not_too_long(model, source_lengths):
    """The lengths, and an InvalidArgument for a source that the model cannot read."""
    import tensorflow as tf

    limit = model.max_sequence_length
    if limit is None:
        return source_lengths
    message = f"A source may have at most {limit} tokens. Received: sources of lengths"
    with tf.control_dependencies([language.check(source_lengths <= limit, message, source_lengths)]):
        return tf.identity(source_lengths)


def _with_mask(source, source_lengths):
    import tensorflow as tf

    source = _with_a_column(source)
    return {"token_ids": source, "padding_mask": tf.sequence_mask(source_lengths, tf.shape(source)[1])}


def _with_a_column(array):
    """The array, and one column of 0 where it has none, of which TensorFlow's recurrent loops make nothing."""
    import tensorflow as tf

    return tf.pad(array, [[0, 0], [0, tf.cast(tf.equal(tf.shape(array)[1], 0), tf.int32)]])
