import functools
import operator
import threading

import keras
import numpy as np
from keras import ops

from keras_lt.backend import compile_function, is_tracing
from keras_lt.generation import loop
from keras_lt.generation.prompts import pad
from keras_lt.generation.sampling import fold_in

_MOST_FUNCTIONS = 64


class Decoder:
    """Compiles the decode loop of a model, once for each bucket of shapes, and starts decodings.

    Args:
        model: Model that speaks the decoding protocol: `build_cache`, `call_with_cache`, `decoding_limit`.
    """

    def __init__(self, model):
        self.model = model
        self._variables, self._functions, self._lock = [], {}, threading.Lock()

    def compiled(self, key, function):
        """The compiled form of a function that reads the model's weights, made anew when there are other weights.

        Args:
            key: Hashable. What tells the function from others.
            function: Function of trees of tensors.

        Returns:
            A function of the same arguments.
        """
        if is_tracing():
            raise RuntimeError(
                "`generate`, `stream` and `score` compile loops of their own and cannot be called in a tf.function. "
                "There, use `build_cache` and `call_with_cache`, or keras_lt.generation.loop"
            )
        if hasattr(self.model, "jax_state_sync"):
            self.model.jax_state_sync()  # during `fit`, Keras on JAX keeps the weights' values elsewhere
        with self._lock:
            return self._compiled(key, function)

    def _compiled(self, key, function):
        variables = self.model.weights
        known = len(variables) == len(self._variables) and all(map(operator.is_, variables, self._variables))
        if not known:  # by LoRA or quantization; other values of the same variables are read at every call
            self._variables, self._functions = variables, {}
        # The one used last stands last; the first goes when there are too many, as of a new lambda with each call.
        self._functions[key] = self._functions.pop(key, None) or compile_function(function, variables)
        if len(self._functions) > _MOST_FUNCTIONS:
            del self._functions[next(iter(self._functions))]
        return self._functions[key]

    def start(
        self, prompts, max_new_tokens, method, seeds, stop_token_ids, num_samples=1, num_log_probs=0, sources=None
    ):
        """Read prompts; nothing is generated yet.

        Args:
            prompts: List of int32 arrays, none of them empty.
            max_new_tokens: Integer. Most tokens to generate for each.
            method: `DecodingMethod`.
            seeds: Pair of int32 arrays, the seed and the stream of each row.
            stop_token_ids: int32 array.
            num_samples: Integer. Samples of each prompt. Defaults to `1`.
            num_log_probs: Integer. Number of likeliest tokens whose log-probabilities to keep. Defaults to `0`, none.
            sources: List of int32 arrays, what the model reads beside each prompt. Defaults to `None`, nothing.

        Returns:
            A `Decoding`.
        """
        copies = method.rows_per_prompt(num_samples)
        lengths = np.array([len(prompt) for prompt in prompts])
        limit, longest = self.model.decoding_limit, int(lengths.max())
        num_prompts = row_bucket(len(prompts))
        width = length_bucket(longest + max_new_tokens)
        slides = limit is not None and longest + max_new_tokens - 1 > limit
        cache_length = width if limit is None else min(width, limit)
        read = 0 if longest == 1 else min(cache_length, max(16, 1 << (longest - 1).bit_length()))

        lengths = np.concatenate([lengths, np.ones(num_prompts - len(prompts), int)]).astype("int32")
        padded, source = pad(prompts, num_prompts, width), pad_source(sources, num_prompts)
        key = ("prefill", num_prompts, read, cache_length, copies, sources is None)
        fill = self.compiled(key, functools.partial(_prefill, self.model, cache_length, copies))
        num_rows = num_prompts * copies
        finished = np.arange(num_rows) >= len(prompts) * copies
        state = {
            "token_ids": np.repeat(padded, copies, axis=0),
            "lengths": np.repeat(lengths, copies),
            "finished": finished,
            "failed": np.zeros(num_rows, "bool"),
            **method.initial_state(num_rows),
        }
        state = keras.tree.map_structure(ops.convert_to_tensor, state)
        state["cache"] = fill(ops.convert_to_tensor(padded[:, :read]), ops.convert_to_tensor(lengths), source)
        if num_log_probs:
            state["log_probs"] = loop.empty_log_probs((num_rows, width), num_log_probs)
        inputs = {
            "seeds": _extend(seeds[0], num_rows),
            "streams": _extend(seeds[1], num_rows),
            "stop_token_ids": stop_token_ids,
            "settings": method.settings(),
        }
        inputs = keras.tree.map_structure(ops.convert_to_tensor, inputs)
        if slides and source is not None:
            inputs["source"] = keras.tree.map_structure(lambda x: ops.repeat(x, copies, axis=0), source)
        shapes = (num_prompts, copies, width, cache_length, len(stop_token_ids), num_log_probs, sources is None)
        key = ("advance", method.loop_key(), slides, *shapes)
        go_on = self.compiled(key, functools.partial(_advance, self.model, method, limit if slides else None))
        return Decoding(go_on, state, inputs, np.repeat(lengths, copies), max_new_tokens, len(prompts) * copies)


class Decoding:
    """A batch of sequences that is being generated.

    Args:
        go_on: Compiled function of a state and inputs that gives the next state.
        state: Dictionary of tensors, as `loop` describes it.
        inputs: Dictionary of tensors, but for the targets.
        prompt_lengths: int32 array of shape `(B,)`.
        max_new_tokens: Integer.
        num_rows: Integer. How many of the rows are real; the rest fill a bucket.
    """

    def __init__(self, go_on, state, inputs, prompt_lengths, max_new_tokens, num_rows):
        self._go_on, self._state, self._inputs = go_on, state, inputs
        self._asked = 0
        self.prompt_lengths = prompt_lengths
        self.max_new_tokens = max_new_tokens
        self.num_rows = num_rows
        self._read()

    @property
    def done(self):
        """Whether no row goes on."""
        return bool(self.finished.all()) or self._asked >= self.max_new_tokens

    def advance(self, num_tokens=None):
        """Generate up to so many more tokens in each row that is not finished; `None` for all that are left."""
        left = self.max_new_tokens - self._asked
        self._asked += left if num_tokens is None else min(num_tokens, left)
        if not self.finished.all():
            targets = ops.convert_to_tensor(self.prompt_lengths + np.int32(self._asked))
            self._state = self._go_on(self._state, {**self._inputs, "targets": targets})
            self._read()

    def finish(self, rows):
        """End rows before their time.

        Args:
            rows: Booleans, one a row.
        """
        if np.any(rows):
            self.finished[: self.num_rows] |= rows
            self._state["finished"] = ops.convert_to_tensor(self.finished)

    def row(self, number):
        """The ids of a row, prompt included, as an int32 array."""
        return self.new_tokens(number, 0)

    def new_tokens(self, number, start=None):
        """The ids of a row from a place on, by default those without the prompt, as an int32 array."""
        start = self.prompt_lengths[number] if start is None else start
        return self.token_ids[number, start : self.lengths[number]].copy()

    def log_probs(self, number):
        """The log-probabilities of the new tokens of a row: `"chosen"` `(n,)`, `"top_ids"` and `"top"` `(n, k)`."""
        new = slice(self.prompt_lengths[number], self.lengths[number])
        return {
            name: ops.convert_to_numpy(values)[number, new].copy() for name, values in self._state["log_probs"].items()
        }

    def _read(self):
        names = ("token_ids", "lengths", "finished", "failed")
        self.token_ids, self.lengths, self.finished, failed = (
            np.array(ops.convert_to_numpy(self._state[name])) for name in names
        )
        if failed[: self.num_rows].any():
            row = int(np.flatnonzero(failed)[0])
            raise ValueError(
                f"There is no next token for row {row} after {self.lengths[row]} tokens: the model's logits are NaN or "
                "infinite (its weights may be: look at the training's loss), or a sampling function gave an id outside "
                f"the vocabulary. The row so far: {self.row(row)[-10:]}"
            )


def row_bucket(number):
    """The next of 1, 2, 3, 4, 6, 8, 12, ...: how many rows a batch is filled up to."""
    return _next_of(number, 2)


def length_bucket(number):
    """The next of 16, 20, 24, 28, 32, 40, ...: how many tokens a sequence has room for."""
    return max(16, _next_of(number, 4))


def _next_of(number, steps):
    """The next number that is a power of 2, or lies one of `steps` equal steps between two of them."""
    step = max(1, (1 << max(0, number - 1).bit_length()) // (2 * steps))
    return -(-number // step) * step


def pad_source(sources, num_rows):
    """Sources side by side, as `build_cache` takes them: their ids and the mask of the real ones; `None` for `None`."""
    if sources is None:
        return None
    length = length_bucket(max(map(len, sources)))
    ones = [np.ones(len(source)) for source in sources]
    arrays = {"token_ids": pad(sources, num_rows, length), "padding_mask": pad(ones, num_rows, length).astype("bool")}
    return keras.tree.map_structure(ops.convert_to_tensor, arrays)


def _prefill(model, cache_length, copies, token_ids, lengths, source):
    cache = loop.prefill(model, token_ids, lengths, cache_length, source)
    return keras.tree.map_structure(lambda x: ops.repeat(x, copies, axis=0), cache) if copies > 1 else cache


def _advance(model, method, limit, state, inputs):
    inputs = {**inputs, "keys": fold_in(inputs["seeds"], inputs["streams"])}
    return loop.advance(model, method, state, inputs, limit)


def _extend(values, length):
    return np.concatenate([values, np.zeros(length - len(values), "int32")])
