from typing import NamedTuple

from keras import ops

from keras_lt.generation.decoding_method import DecodingMethod


class History(NamedTuple):
    """What a user's sampling function is told of each row: the ids so far, `(B, S)`, and how many there are, `(B,)`."""

    token_ids: object
    lengths: object


class FunctionSampler(DecodingMethod):
    """A user's own function `(logits, history) -> ids` in the place of a `Sampler`."""

    def __init__(self, function):
        self.function = function

    def loop_key(self):
        # Not the function, which need not be hashable; the compiled loop keeps it alive, and so its number its own.
        return type(self), id(self.function)

    def choose(self, logits, state, active, inputs):
        ids = ops.convert_to_tensor(self.function(logits, History(state["token_ids"], state["lengths"])))
        if tuple(ids.shape) != tuple(logits.shape[:1]):
            raise ValueError(
                "The function `sampler(logits, history)` must return an id a row, of shape (B,) for logits of shape "
                f"(B, V). Received: shape {tuple(ids.shape)} for logits of shape {tuple(logits.shape)}"
            )
        return ops.cast(ids, "int32"), None, {}

    def get_config(self):
        return {"function": self.function}
