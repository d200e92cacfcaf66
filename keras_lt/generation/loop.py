"""The decode loop: pure functions that know a model only through `build_cache` and `call_with_cache`.

The state is a dictionary of tensors whose first axis is the row: `token_ids` `(B, W)`, of which the first `lengths`
are there; `finished` and `failed`; the `cache`, which holds all tokens but the last; what the decoding method keeps;
and, if asked for, log-probabilities. The inputs are `targets`, the length at which each row pauses, `stop_token_ids`,
what the decoding method reads, and, where a model that reads a `source` may slide, that.
"""

import keras
import numpy as np
from keras import ops

from keras_lt.ops import is_id


def empty_cache(model, batch_size, max_length, source=None):
    """A cache before the first token; the model is given the source it reads, if there is one."""
    return model.build_cache(batch_size, max_length, **({} if source is None else {"source": source}))


def prefill(model, token_ids, lengths, cache_length, source=None):
    """Make a cache that holds the prompts but for the last token of each.

    Args:
        model: Model that speaks the decoding protocol.
        token_ids: int32 tensor of shape `(B, P)`, the prompts, or as much of them as the cache can hold.
        lengths: int32 tensor of shape `(B,)`: how many tokens the prompts have.
        cache_length: Integer. Number of tokens the cache can hold.
        source: As `build_cache` takes it. Defaults to `None`, for a model that reads none.

    Returns:
        The cache.
    """
    cache = empty_cache(model, ops.shape(token_ids)[0], cache_length, source)
    if token_ids.shape[1] == 0:
        return cache
    lengths = ops.clip(lengths - 1, 0, ops.shape(token_ids)[1])
    return model.call_with_cache(token_ids, cache, 0, lengths=lengths)[1]


def advance(model, method, state, inputs, limit=None):
    """Go on until each row has met a stop token or has its target length.

    Args:
        model: Model that speaks the decoding protocol.
        method: `DecodingMethod`.
        state: Dictionary of tensors, see above.
        inputs: Dictionary of tensors, see above.
        limit: Integer. Number of tokens that the model can look at, where rows may grow beyond it. Defaults to `None`.

    Returns:
        The new state.
    """

    def is_active(state):
        return ops.logical_and(ops.logical_not(state["finished"]), state["lengths"] < inputs["targets"])

    def fits(state):
        return is_active(state) if limit is None else ops.logical_and(is_active(state), state["lengths"] <= limit)

    def cached_step(state):
        active = fits(state)
        last = ops.maximum(state["lengths"] - 1, 0)
        token_ids = ops.take_along_axis(state["token_ids"], last[:, None], axis=1)
        # A row that does not go on may lie beyond the cache; its last token is, or is no longer, in its place.
        start_index = last if limit is None else ops.minimum(last, limit - 1)
        logits, cache = model.call_with_cache(token_ids, state["cache"], start_index, lengths=ops.cast(active, "int32"))
        return append(method, {**state, "cache": cache}, inputs, active, logits[:, 0])

    state = ops.while_loop(lambda state: ops.any(fits(state)), cached_step, state)
    if limit is None:
        return state

    cache = state.pop("cache")

    def sliding_step(state):
        places = ops.maximum(state["lengths"][:, None] - limit + ops.arange(limit, dtype="int32"), 0)
        window = ops.take_along_axis(state["token_ids"], places, axis=1)
        return append(method, state, inputs, is_active(state), logits_after(model, window, inputs.get("source")))

    state = ops.while_loop(lambda state: ops.any(is_active(state)), sliding_step, state)
    return {**state, "cache": cache}


def logits_after(model, window, source=None):
    """The logits after a window of as many tokens as the model can look at, `(B, T)`: a tensor of shape `(B, V)`."""
    limit = window.shape[1]
    # In two calls: only the last token needs its logits, and what nobody reads is not computed.
    cache = prefill(model, window[:, :-1], ops.full_like(window[:, 0], limit), limit, source)
    return model.call_with_cache(window[:, -1:], cache, limit - 1)[0][:, 0]


def append(method, state, inputs, active, logits):
    """Choose the next token of each row that goes on, and add it."""
    # There is a next token where all logits are below infinity, which NaN is not, and some above minus infinity.
    largest = ops.max(ops.where(logits < np.inf, logits, np.inf), axis=-1)
    valid = ops.logical_and(largest < np.inf, largest > -np.inf)
    token_ids, parents, changes = method.choose(logits, state, active, inputs)
    if parents is not None:
        taken = (state, active, logits, valid)
        state, active, logits, valid = keras.tree.map_structure(lambda x: ops.take(x, parents, axis=0), taken)
    valid = ops.logical_and(valid, is_id(token_ids, logits.shape[-1]))
    stops = ops.any(ops.equal(token_ids[:, None], inputs["stop_token_ids"]), axis=-1)
    grows = ops.logical_and(active, ops.logical_and(valid, ops.logical_not(stops)))
    here = ops.equal(ops.arange(ops.shape(state["token_ids"])[1], dtype="int32"), state["lengths"][:, None])
    here = ops.logical_and(here, grows[:, None])
    ended = ops.logical_and(active, ops.logical_or(stops, ops.logical_not(valid)))
    new = {
        "token_ids": ops.where(here, token_ids[:, None], state["token_ids"]),
        "lengths": state["lengths"] + ops.cast(grows, "int32"),
        "finished": ops.logical_or(state["finished"], ended),
        "failed": ops.logical_or(state["failed"], ops.logical_and(active, ops.logical_not(valid))),
    }
    if "log_probs" in state:
        new["log_probs"] = _record(state["log_probs"], logits, token_ids, here)
    return {**state, **changes, **new}


def empty_log_probs(shape, top):
    """Places for the log-probabilities of the chosen tokens, `(B, W)`, and of the `top` likeliest, `(B, W, top)`."""
    return {
        "chosen": ops.zeros(shape, "float32"),
        "top_ids": ops.zeros((*shape, top), "int32"),
        "top": ops.zeros((*shape, top), "float32"),
    }


def _record(log_probs, logits, token_ids, here):
    rows = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
    chosen = ops.take_along_axis(rows, ops.clip(token_ids, 0, logits.shape[-1] - 1)[:, None], axis=1)
    top, top_ids = ops.top_k(rows, log_probs["top"].shape[-1])
    return {
        "chosen": ops.where(here, chosen, log_probs["chosen"]),
        "top_ids": ops.where(here[..., None], ops.cast(top_ids, "int32")[:, None], log_probs["top_ids"]),
        "top": ops.where(here[..., None], top[:, None], log_probs["top"]),
    }
