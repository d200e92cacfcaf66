from typing import NamedTuple

import keras
from keras import ops

from keras_lt.generation.decoding_method import DecodingMethod
from keras_lt.ops import is_id


class History(NamedTuple):
    """What a user's sampling function is told of each row: the ids so far, `(B, S)`, and how many there are, `(B,)`."""

    token_ids: object
    lengths: object


class FunctionSampler(DecodingMethod):
    """A user's own function `(logits, history) -> ids` in the place of a `Sampler`."""

    def __init__(self, function):
        self.function = function

    def loop_key(self):
        # Its number, because it need not be hashable.
        return type(self), id(self.function)

    def choose(self, logits, state, active, inputs):
        ids = self.function(logits, History(state["token_ids"], state["lengths"]))
        ids = None if ids is None else ops.convert_to_tensor(ids)
        dtype = "None" if ids is None else keras.backend.standardize_dtype(ids.dtype)
        shape = () if ids is None else tuple(ids.shape)
        if "int" not in dtype or shape != tuple(logits.shape[:1]):
            raise ValueError(
                "The function `sampler(logits, history)` must return an id a row, integers of shape (B,), for logits "
                "of shape (B, V); B may be larger than the number of prompts. "
                f"Received: {dtype} of shape {shape} for logits of shape {tuple(logits.shape)}"
            )
        return ops.cast(ops.where(is_id(ids, logits.shape[-1]), ids, -1), "int32"), None, {}

    def get_config(self):
        return {"function": self.function}
