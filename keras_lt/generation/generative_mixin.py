import time

import numpy as np
from keras import ops

from keras_lt.backend import check_number, check_positive_integer
from keras_lt.generation.decoder import Decoder
from keras_lt.generation.prompts import to_method, to_rows, to_seeds, to_stop_token_ids
from keras_lt.generation.scoring import score

# How long `stream` lets its reader wait for the next piece.
_SECONDS_A_PIECE = 0.02


class GenerativeMixin:
    """Gives a Keras model that speaks the decoding protocol `generate`, `stream` and `score`.

    The protocol is all that is known of the model:

    - `build_cache(batch_size, max_length)` gives a tree of tensors whose first axis is the row; a model that reads a
      source takes it as `source`, a dictionary of `"token_ids"` and `"padding_mask"`, `(B, S)`;
    - `call_with_cache(token_ids, cache, start_index, lengths=None)` gives `(logits, cache)` for one or many new tokens,
      of which only the first `lengths[b]` of row `b` are real and enter the cache; `start_index`, the number of tokens
      before them, may differ from row to row;
    - `decoding_limit`, and the attributes `max_sequence_length` and `vocabulary_size`.
    """

    # Id that ends a sequence unless the caller names others, or `None`.
    end_token_id = None
    # Whether it answers to a source, rather than going on with what it is given.
    reads_source = False

    @property
    def decoding_limit(self):
        """Number of tokens after which decoding slides a window and recomputes it, or `None` where it never has to."""
        return self.max_sequence_length

    def generate(
        self,
        token_ids,
        max_new_tokens,
        sampler="greedy",
        lengths=None,
        seed=None,
        stop_token_ids=None,
        num_samples=1,
        return_log_probs=0,
    ):
        """Continue sequences of ids.

        One compiled loop generates all tokens of a batch. It is compiled once for each bucket of shapes (number of
        prompts, length of the longest, room for new tokens); samplers, seeds, lengths and stop tokens are its inputs.
        Prompts of unequal lengths are continued as each would be alone. Where a sequence grows beyond what the model
        can look at, each next token is computed from the last `max_sequence_length` ones.

        Args:
            token_ids: List of sequences of ids, one a prompt, or an array of shape `(B, T)`. Each holds a token or
                more; a model that begins texts with a start token is given that. With `mask_zero`, trailing zeros of
                an array are padding. A model that reads a source takes a dictionary of `"source"` and, to go on with
                targets that begin with the start token, `"target"`.
            max_new_tokens: Integer, 0 or more. Most tokens to generate for each prompt.
            sampler: `"greedy"`, a `keras_lt.generation.Sampler` or `BeamSearch`, or a function
                `(logits, history) -> ids` of tensors: logits `(B, V)`, `history.token_ids` `(B, S)`,
                `history.lengths` `(B,)`, ids `(B,)`. `B` may be larger than the number of prompts: a batch is filled up
                to a bucket. The function is compiled with the loop, once: what it reads besides its arguments stays
                what it was, and on JAX `keras.random` cannot be used in it. Defaults to `"greedy"`.
            lengths: Integers of shape `(B,)`: how many ids of each prompt are real. Defaults to `None`, all.
            seed: Integer, 0 or more, or one a prompt. The same seed gives the same tokens in every process; with a
                seed a prompt, whatever the other prompts are. Defaults to `None`, drawn from Python's random numbers,
                which `keras.utils.set_random_seed` governs.
            stop_token_ids: Integer or list of integers. Ids that end a sequence. Defaults to `None`: the model's
                `end_token_id`, where it has one.
            num_samples: Integer. Number of continuations of each prompt; of a beam search the best ones. Defaults to
                `1`.
            return_log_probs: Integer `k`. Whether to return log-probabilities as well: those of the chosen tokens and
                of the `k` likeliest. Defaults to `0`, no.

        Returns:
            A list of int32 arrays, the `num_samples` continuations of the first prompt, then those of the second, ...:
            prompt included, stop token not; a start token that was not passed is not there either. With
            `return_log_probs` a pair of it and a list of dictionaries, one a continuation of `n` new tokens:
            `"chosen"`, float32 of shape `(n,)`, `"top_ids"`, int32, and `"top"`, float32, of shape `(n, k)`. They are
            the model's own, in nats, before the sampler's settings.

        Raises:
            ValueError: If an argument is out of range, a prompt is empty, or the model's logits are NaN.
            TypeError: If the ids are no numbers.
        """
        decoding = self.start_decoding(
            token_ids, max_new_tokens, sampler, lengths, seed, stop_token_ids, num_samples, return_log_probs
        )
        if decoding is None:
            return ([], []) if return_log_probs else []
        decoding.advance()
        copies = to_method(sampler).rows_per_prompt(num_samples)
        numbers = [first + n for first in range(0, decoding.num_rows, copies) for n in range(num_samples)]
        first = 0 if self._has_prompts(token_ids) else 1
        rows = [decoding.new_tokens(number, first) for number in numbers]
        return (rows, [decoding.log_probs(number) for number in numbers]) if return_log_probs else rows

    def stream(self, token_ids, max_new_tokens, sampler="greedy", seed=None, stop_token_ids=None):
        """Continue one sequence of ids, and give the new ones as they come.

        They come in pieces, each from one call of the compiled loop, as many tokens as take about 20 milliseconds.

        Args:
            token_ids: Sequence of ids of rank 1, a token or more; for a model that reads a source a dictionary of such.
            max_new_tokens: As in `generate`.
            sampler: As in `generate`, but no beam search, which decides at the end. Defaults to `"greedy"`.
            seed: Integer. As in `generate`. Defaults to `None`.
            stop_token_ids: As in `generate`. Defaults to `None`.

        Yields:
            int32 arrays of rank 1, joined the tokens that `generate` adds to the prompt.

        Raises:
            ValueError: As in `generate`.
            TypeError: If the ids are no numbers.
        """
        if to_method(sampler).rows_per_prompt(1) > 1:
            raise ValueError(f"A beam search cannot be streamed: it decides at the end. Received: sampler={sampler!r}")
        one = {name: [ids] for name, ids in token_ids.items()} if isinstance(token_ids, dict) else [token_ids]
        decoding = self.start_decoding(one, max_new_tokens, sampler, None, seed, stop_token_ids)
        return _pieces(decoding)

    def score(self, token_ids, lengths=None):
        """The log-likelihood of sequences: of each token but the first, given those before it.

        Where a sequence is longer than what the model can look at, each token is given the last `max_sequence_length`
        ones, as in `generate`; that takes a window for each such token.

        Args:
            token_ids: List of sequences of ids, or an array of shape `(B, T)`. With `mask_zero`, zeros are padding. A
                model that reads a source takes a dictionary of `"source"` and `"target"`, the target beginning with
                the start token, and ending with the end token if that is to count.
            lengths: Integers of shape `(B,)`: how many ids of each sequence are real. Defaults to `None`, all.

        Returns:
            A dictionary of NumPy arrays of shape `(B,)`: `"log_likelihood"`, float32, in nats, and `"token_counts"`,
            int32, the number of tokens it is the sum over.

        Raises:
            ValueError: If an id is out of range or shapes do not fit.
            TypeError: If the ids are no numbers.
        """
        rows, sources = self._to_rows(token_ids, lengths)
        return score(self._get_decoder(), rows, self._real, sources)

    def _get_decoder(self):
        if not hasattr(self, "_decoder"):
            self._decoder = Decoder(self)
        return self._decoder

    def start_decoding(
        self,
        token_ids,
        max_new_tokens,
        sampler="greedy",
        lengths=None,
        seed=None,
        stop_token_ids=None,
        num_samples=1,
        num_log_probs=0,
    ):
        """Read prompts and let the caller say when to go on: what `generate` and `stream` stand on.

        Args:
            token_ids: As in `generate`.
            max_new_tokens: As in `generate`.
            sampler: As in `generate`. Defaults to `"greedy"`.
            lengths: As in `generate`. Defaults to `None`.
            seed: As in `generate`. Defaults to `None`.
            stop_token_ids: As in `generate`. Defaults to `None`.
            num_samples: As in `generate`. Defaults to `1`.
            num_log_probs: As `return_log_probs` in `generate`. Defaults to `0`.

        Returns:
            A `keras_lt.generation.decoder.Decoding`, or `None` if there are no prompts.
        """
        check_number("max_new_tokens", max_new_tokens, 0, whole=True)
        check_number("return_log_probs", num_log_probs, 0, self.vocabulary_size, whole=True)
        check_positive_integer("num_samples", num_samples)
        method = to_method(sampler)
        if stop_token_ids is None:
            stop_token_ids = self.end_token_id
        stop_token_ids = to_stop_token_ids(stop_token_ids, self.vocabulary_size)
        prompts, sources = self._to_prompts(token_ids, lengths)
        copies = method.rows_per_prompt(num_samples)
        seeds = to_seeds(seed, len(prompts), copies)
        for number, prompt in enumerate(prompts):
            if not len(prompt):
                raise ValueError(
                    f"Prompt {number} is empty: there is nothing to continue. Give it a first token, such as the one "
                    "that begins the texts the model was trained on"
                )
        if not prompts:
            return None
        return self._get_decoder().start(
            prompts, int(max_new_tokens), method, seeds, stop_token_ids, num_samples, int(num_log_probs), sources
        )

    def _has_prompts(self, token_ids):
        """Whether the caller gave the tokens that are continued."""
        return True

    def _to_rows(self, token_ids, lengths):
        """The sequences as a list of int32 arrays, and another of their sources or `None`."""
        return to_rows(token_ids, self.vocabulary_size, lengths), None

    def _to_prompts(self, token_ids, lengths):
        """The same, without the padding of an array."""
        prompts, sources = self._to_rows(token_ids, lengths)
        if lengths is None and not isinstance(token_ids, (list, tuple)):
            prompts = [self._without_padding(prompt) for prompt in prompts]
        return prompts, sources

    def _real(self, token_ids):
        return self.compute_mask(token_ids, None)

    def _without_padding(self, prompt):
        mask = self._real(prompt[None])
        if mask is None:
            return prompt
        return prompt[: len(np.trim_zeros(ops.convert_to_numpy(mask)[0], "b"))]


def _pieces(decoding):
    size = 1
    while not decoding.done:
        before, start = int(decoding.lengths[0]), time.perf_counter()
        decoding.advance(size)
        seconds = time.perf_counter() - start
        piece = decoding.new_tokens(0, before)
        if len(piece):
            yield piece
        # At most twice as many: the first calls are slow for other reasons.
        size = max(1, min(2 * size, int(size * _SECONDS_A_PIECE / seconds)))
