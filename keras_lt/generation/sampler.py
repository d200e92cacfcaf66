import keras
import numpy as np

from keras_lt.backend import check_number
from keras_lt.generation.decoding_method import DecodingMethod
from keras_lt.generation.sampling import sample


@keras.saving.register_keras_serializable(package="keras_lt")
class Sampler(DecodingMethod):
    """How the next token is chosen: greedily, or at random with limits.

    `p = softmax(logits / temperature)`, of which the `top_k` likeliest tokens stay, then the fewest whose probabilities
    reach `top_p`, then those at least `min_p` times as likely as the likeliest; the likeliest always stays. One token
    is drawn from those that are left. Before all that, `repetition_penalty` acts on the logits of tokens that the
    sequence, prompt included, holds already. Probabilities are computed in float32.

    Where tokens are equally likely, the smaller id comes first (on PyTorch, with one of the limits, any).

    Args:
        temperature: Float, 0 or more. Below 1 likely tokens become likelier; 0 is greedy: always the likeliest token.
            Defaults to `1.0`.
        top_k: Integer. Number of tokens to draw from; 0, or more than there are, for all. Defaults to `0`.
        top_p: Float from 0 to 1. Probability that the tokens to draw from reach together; 1 for all. Defaults to `1.0`.
        min_p: Float from 0 to 1. Least probability, as a share of that of the likeliest token. Defaults to `0.0`.
        repetition_penalty: Float from 1e-6 to 1e6. What the logits of tokens that were there are divided by, where
            they are above 0, or multiplied with, where they are below. Defaults to `1.0`, no penalty.

    Example:

    >>> model = keras_lt.models.LittleTransformer()
    >>> sampler = keras_lt.generation.Sampler(temperature=0.8, top_k=10)
    >>> model.generate([[18, 47, 56]], max_new_tokens=5, sampler=sampler, seed=1)[0].shape
    (8,)

    References:
    - [Fan et al., 2018](https://arxiv.org/abs/1805.04833), top-k
    - [Holtzman et al., 2020](https://arxiv.org/abs/1904.09751), top-p
    - [Nguyen et al., 2025](https://arxiv.org/abs/2407.01082), min-p
    - [Keskar et al., 2019](https://arxiv.org/abs/1909.05858), repetition penalty
    """

    def __init__(self, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, repetition_penalty=1.0):
        self.temperature = temperature
        self.top_k = top_k
        self.top_p = top_p
        self.min_p = min_p
        self.repetition_penalty = repetition_penalty
        check_number("temperature", temperature, 0)
        check_number("top_k", top_k, 0, whole=True)
        check_number("top_p", top_p, 0, 1)
        check_number("min_p", min_p, 0, 1)
        check_number("repetition_penalty", repetition_penalty, 1e-6, 1e6)

    def loop_key(self):
        return Sampler if type(self) is Sampler else super().loop_key()

    def settings(self):
        return {
            "temperature": np.float32(min(self.temperature, 1e30)),
            "top_k": np.int32(min(self.top_k, 2**31 - 1)),
            "top_p": np.float32(self.top_p),
            "min_p": np.float32(self.min_p),
            "repetition_penalty": np.float32(self.repetition_penalty),
        }

    def choose(self, logits, state, active, inputs):
        ids = sample(logits, state["token_ids"], state["lengths"], inputs["keys"], inputs["settings"])
        return ids, None, {}

    def get_config(self):
        return {
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "repetition_penalty": self.repetition_penalty,
        }
