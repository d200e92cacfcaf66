"""What a served language model does, as functions of TensorFlow tensors with dynamic shapes."""

import functools

import keras
from keras import ops

from keras_lt.generation import Sampler, loop
from keras_lt.generation.generative_mixin import GenerativeMixin
from keras_lt.generation.sampling import fold_in
from keras_lt.ops import cross_entropy
from keras_lt.serving.graph_tokenizers import graph_tokenizer

SETTINGS = {
    "max_new_tokens": "int32",
    "temperature": "float32",
    "top_k": "int32",
    "top_p": "float32",
    "seed": "int32",
}


def endpoints(model, tokenizer=None):
    """The functions of a language model by the names of their signatures, each with what it takes."""
    import tensorflow as tf

    tokenizer = None if tokenizer is None else graph_tokenizer(tokenizer)
    token_ids = tf.TensorSpec([None, None], "int32", name="token_ids")
    lengths = tf.TensorSpec([None], "int32", name="prompt_lengths")
    prompts, texts = (tf.TensorSpec([None], "string", name=name) for name in ("prompts", "texts"))
    settings = settings_signature()

    def continue_ids(token_ids, prompt_lengths, *settings):
        return generate_ids(model, token_ids, prompt_lengths, by_name(settings))

    traced = trace_once(continue_ids, [token_ids, lengths, *settings])
    found = {"serving_default": (lambda token_ids: logits(model, token_ids), [token_ids])}
    if keras.config.backend() == "tensorflow" and isinstance(model, GenerativeMixin):
        found["generate_ids"] = (lambda *inputs: traced()(*inputs), [token_ids, lengths, *settings])
        if tokenizer is not None:
            found["generate"] = (
                lambda prompts, *settings: generate_texts(traced(), tokenizer, prompts, by_name(settings)),
                [prompts, *settings],
            )
            found["score"] = (lambda texts: score_texts(model, tokenizer, texts), [texts])
    return found


def trace_once(function, signature):
    """A function that gives the concrete function, traced when it is first asked for.

    Several signatures need that of `generate_ids`, and it is most of the work of an export.
    """
    import tensorflow as tf

    @functools.cache
    def traced():
        with tf.init_scope():
            return tf.function(function, input_signature=signature, autograph=False).get_concrete_function()

    return traced


def logits(model, inputs):
    """Logits after each token, `(B, T, V)`, in float32."""
    return {"logits": ops.cast(model(inputs), "float32")}


def generate_ids(model, token_ids, prompt_lengths, settings, source=None):
    """Continue prompts: ids with the new ones, 0 after them, `(B, T + max_new_tokens)`, and their numbers, `(B,)`."""
    import tensorflow as tf

    check_settings(settings)
    # What follows may run before the check, and must not fail with a message of its own.
    settings = {**settings, "max_new_tokens": tf.maximum(settings["max_new_tokens"], 0)}
    length = tf.shape(token_ids)[1]
    token_ids = check_rows(model, token_ids, prompt_lengths, "Prompts", "prompt_lengths", "token_ids")

    # An empty batch may come with no columns.
    token_ids = tf.pad(token_ids, [[0, 0], [0, settings["max_new_tokens"] + tf.cast(tf.equal(length, 0), tf.int32)]])
    limit, width = model.decoding_limit, tf.shape(token_ids)[1]
    cache_length = width if limit is None else tf.minimum(width, limit)
    read = tf.maximum(1, tf.minimum(length - 1, cache_length))
    num_rows = tf.shape(token_ids)[0]
    state = {
        "token_ids": token_ids,
        "lengths": prompt_lengths,
        "finished": tf.zeros([num_rows], tf.bool),
        "failed": tf.zeros([num_rows], tf.bool),
        "cache": loop.prefill(model, token_ids[:, :read], prompt_lengths, cache_length, source),
    }
    inputs = {
        "targets": prompt_lengths + settings["max_new_tokens"],
        "stop_token_ids": tf.constant([-1 if model.end_token_id is None else model.end_token_id]),
        "keys": fold_in(settings["seed"], tf.range(num_rows)),
        "settings": {**Sampler().settings(), **{name: settings[name] for name in ("temperature", "top_k", "top_p")}},
    }
    inputs["settings"] = {name: tf.convert_to_tensor(value) for name, value in inputs["settings"].items()}
    if source is not None:
        inputs["source"] = source
    state = loop.advance(model, Sampler(), state, inputs, limit)
    check(tf.logical_not(state["failed"]), "The model's logits must be numbers. Received: NaN after", state["lengths"])
    return {"token_ids": state["token_ids"][:, : length + settings["max_new_tokens"]], "lengths": state["lengths"]}


def generate_texts(ids_of, tokenizer, prompts, settings):
    """Continue texts: the texts with what is new, strings `(B,)`; `ids_of` is `generate_ids`, traced before."""
    import tensorflow as tf

    token_ids, lengths = encode(tokenizer, prompts)
    results = ids_of(token_ids, lengths, *settings.values())
    places = tf.range(tf.shape(results["token_ids"])[1])
    new = tf.logical_and(places >= lengths[:, None], places < results["lengths"][:, None])
    return {"texts": tf.strings.join([prompts, tokenizer.decode(tf.ragged.boolean_mask(results["token_ids"], new))])}


def encode(tokenizer, prompts):
    """The ids of texts, `(B, T)`, filled up with 0, and their numbers, `(B,)`: none may be empty."""
    import tensorflow as tf

    ragged = tokenizer.encode(prompts)
    lengths = tf.cast(ragged.row_lengths(), tf.int32)
    # Before the check of the lengths among the ids, which says it in terms of those.
    with tf.control_dependencies(
        [check(lengths >= 1, "Prompts must not be empty. Received: prompts of lengths", lengths)]
    ):
        lengths = tf.identity(lengths)
    return ragged.to_tensor(shape=(None, None)), lengths


def score_texts(model, tokenizer, texts):
    """Log-likelihood in nats, float32 `(B,)`, of all tokens but the first, and the number of those, int32 `(B,)`."""
    import tensorflow as tf

    token_ids, lengths = scored_rows(tokenizer.encode(texts))
    real = tf.sequence_mask(lengths, tf.shape(token_ids)[1])
    mask = model.compute_mask(token_ids, None)
    real = real if mask is None else tf.logical_and(real, mask)
    return scores(model, token_ids, lengths, tf.logical_and(real[:, :-1], real[:, 1:]))


def scored_rows(ragged):
    """The ids of texts, `(B, T)`, filled up with 0, and their numbers; two columns or more, also of no texts."""
    import tensorflow as tf

    token_ids = ragged.to_tensor(shape=(None, None))
    token_ids = tf.pad(token_ids, [[0, 0], [0, tf.maximum(0, 2 - tf.shape(token_ids)[1])]])
    return token_ids, tf.cast(ragged.row_lengths(), tf.int32)


def scores(model, token_ids, lengths, counted, source=None):
    """What `score` returns, the tokens that count being given, `(B, T - 1)`."""
    import tensorflow as tf

    return {
        "log_likelihood": log_likelihood(model, token_ids, lengths, counted, source),
        "token_counts": tf.reduce_sum(tf.cast(counted, tf.int32), axis=1),
    }


def log_likelihood(model, token_ids, lengths, counted, source=None):
    """The sum over the counted tokens: the first ones from one call, each later one from the window before it."""
    import tensorflow as tf

    limit, last = model.decoding_limit, tf.shape(token_ids)[1] - 1
    width = last if limit is None else tf.minimum(last, limit)
    cache = loop.empty_cache(model, tf.shape(token_ids)[0], width, source)
    first, _ = model.call_with_cache(token_ids[:, :width], cache, 0, lengths=tf.minimum(lengths, width))
    losses = cross_entropy(first, token_ids[:, 1 : width + 1])
    total = tf.reduce_sum(tf.where(counted[:, :width], -losses, 0.0), axis=1)
    if limit is None:
        return total

    def add(place, total):
        window = token_ids[:, place + 1 - limit : place + 1]
        after = loop.logits_after(model, tf.ensure_shape(window, (None, limit)), source)
        losses = cross_entropy(after, token_ids[:, place + 1])
        return place + 1, total + tf.where(counted[:, place], -losses, 0.0)

    return ops.while_loop(lambda place, _: place < last, add, (width, total))[1]


def check_rows(model, token_ids, lengths, rows, lengths_name, ids_name):
    """The ids, `(B, T)`, with 0 behind the `lengths`, and an InvalidArgument for what is none or has no number."""
    import tensorflow as tf

    length = tf.shape(token_ids)[1]
    sizes = [tf.shape(token_ids)[0], tf.shape(lengths)[0]]
    check(tf.equal(*sizes), f"{lengths_name} must have a number for each row of {ids_name}. Received:", sizes)
    inside = tf.logical_and(lengths >= 1, lengths <= length)
    check(inside, f"{rows} must hold a token or more, and {lengths_name} be at most T. Received:", lengths)
    real = tf.sequence_mask(lengths, length)
    known = tf.logical_and(token_ids >= 0, token_ids < model.vocabulary_size)
    message = f"Ids must be from 0 to {model.vocabulary_size - 1}. Received:"
    check(tf.logical_or(known, tf.logical_not(real)), message, token_ids)
    return tf.where(real, token_ids, 0)


def check_settings(settings):
    """An InvalidArgument for each setting out of range."""
    import tensorflow as tf

    ranges = {
        "max_new_tokens": settings["max_new_tokens"] >= 0,
        "temperature": tf.logical_and(settings["temperature"] >= 0, tf.math.is_finite(settings["temperature"])),
        "top_k": settings["top_k"] >= 0,
        "top_p": tf.logical_and(settings["top_p"] >= 0, settings["top_p"] <= 1),
    }
    expected = {"top_p": "from 0 to 1"}
    for name, good in ranges.items():
        check(good, f"{name} must be {expected.get(name, '0 or more')}. Received:", settings[name])


def check(good, message, values):
    """An InvalidArgument with the message and the values unless all is good."""
    import tensorflow as tf

    return tf.debugging.Assert(tf.reduce_all(good), [message, values], summarize=20)


def settings_signature():
    """Scalars, named as the settings."""
    import tensorflow as tf

    return [tf.TensorSpec([], dtype, name=name) for name, dtype in SETTINGS.items()]


def by_name(values):
    """The settings as a dictionary."""
    return dict(zip(SETTINGS, values, strict=True))
