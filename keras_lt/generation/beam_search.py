import keras
import numpy as np
from keras import ops

from keras_lt.backend import check_number, check_positive_integer
from keras_lt.generation.decoding_method import DecodingMethod


@keras.saving.register_keras_serializable(package="keras_lt")
class BeamSearch(DecodingMethod):
    """Keeps the `num_beams` best continuations of each prompt at every step, and gives the best at the end.

    A continuation of `n` new tokens, a stop token included, has the score `log P / n^length_penalty`. One that has met
    a stop token keeps its score and its place for as long as it is among the best. With as many beams as there are
    continuations the search is exhaustive; with more, some come twice.

    Args:
        num_beams: Integer. Number of continuations kept a prompt.
        length_penalty: Float from 0 to 5. Power of the length that scores are divided by: 0 favours short texts, 1 is
            the mean over tokens. Defaults to `1.0`.

    Example:

    >>> model = keras_lt.models.LittleTransformer()
    >>> model.generate([[18, 47]], max_new_tokens=3, sampler=keras_lt.generation.BeamSearch(num_beams=4))[0].shape
    (5,)

    References:
    - [Wu et al., 2016](https://arxiv.org/abs/1609.08144)
    """

    def __init__(self, num_beams, length_penalty=1.0):
        self.num_beams = num_beams
        self.length_penalty = length_penalty
        check_positive_integer("num_beams", num_beams)
        check_number("length_penalty", length_penalty, 0, 5)

    def loop_key(self):
        return (BeamSearch, self.num_beams) if type(self) is BeamSearch else super().loop_key()

    def settings(self):
        return {"length_penalty": np.float32(self.length_penalty)}

    def rows_per_prompt(self, num_samples):
        if num_samples > self.num_beams:
            raise ValueError(
                "Beam search gives at most `num_beams` samples a prompt. "
                f"Received: num_samples={num_samples}, num_beams={self.num_beams}"
            )
        return self.num_beams

    def initial_state(self, num_rows):
        scores = np.full((num_rows // self.num_beams, self.num_beams), -np.inf, "float32")
        scores[:, 0] = 0  # the beams of a prompt start equal, and would stay so
        return {"scores": scores.ravel(), "counts": np.zeros(num_rows, "int32")}

    def choose(self, logits, state, active, inputs):
        num_rows, size = logits.shape[0], logits.shape[1]
        log_probs = ops.log_softmax(ops.cast(logits, "float32"), axis=-1)
        failed = ops.any(ops.isnan(log_probs), axis=-1)
        # A row that does not go on has one continuation, itself, in the place of token 0.
        itself = ops.where(ops.arange(size, dtype="int32") == 0, np.float32(0), np.float32(-np.inf))
        log_probs = ops.where(ops.logical_and(active, ops.logical_not(failed))[:, None], log_probs, itself)
        scores = state["scores"][:, None] + log_probs  # (B, V)
        counts = state["counts"] + ops.cast(active, "int32")
        penalty = ops.cast(ops.maximum(counts, 1), "float32") ** inputs["settings"]["length_penalty"]
        by_prompt = (num_rows // self.num_beams, self.num_beams * size)
        _, places = ops.top_k(ops.reshape(scores / penalty[:, None], by_prompt), self.num_beams)
        first_rows = ops.arange(0, num_rows, self.num_beams, dtype="int32")[:, None]
        places = ops.reshape(ops.cast(places, "int32") + first_rows * size, (-1,))
        parents = places // size
        ids = ops.where(ops.take(failed, parents, axis=0), -1, places % size)
        scores = ops.take(ops.reshape(scores, (-1,)), places, axis=0)
        return ids, parents, {"scores": scores, "counts": ops.take(counts, parents, axis=0)}

    def get_config(self):
        return {"num_beams": self.num_beams, "length_penalty": self.length_penalty}
