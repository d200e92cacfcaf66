import codecs
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from typing import Any, Self

import keras

from keras_lt.generation import BeamSearch, Sampler
from keras_lt.generation.generative_mixin import GenerativeMixin
from keras_lt.generation.prompts import to_method
from keras_lt.tokenizers import Tokenizer
from keras_lt.tokenizers.tokenizer import check_text
from keras_lt.version import __version__

_MODEL, _TOKENIZER, _DESCRIPTION = "model.keras", "tokenizer.json", "text_generator.json"

# Tokens that are generated before the text is searched for a stop string again.
_TOKENS_A_SEARCH = 32


class TextGenerator:
    """Joins a model and a tokenizer: text in, text out.

    What it is given, a model such as `LittleTransformer` goes on with. A model that reads a source, such as
    `TransformerSeq2Seq`, answers to it: the texts are its sources, and targets come back. The marks that begin and end
    a target are characters of the tokenizer's vocabulary.

    Args:
        model: Keras model that generates, such as `keras_lt.models.LittleTransformer`.
        tokenizer: `keras_lt.tokenizers.Tokenizer` with as many ids as the model.

    Raises:
        TypeError: If the tokenizer is no `Tokenizer`, or the model does not generate.
        ValueError: If model and tokenizer differ in the number of their ids.

    Example:

    >>> tokenizer = keras_lt.tokenizers.CharTokenizer.from_text("to be or not")
    >>> model = keras_lt.models.LittleTransformer(vocabulary_size=tokenizer.vocabulary_size)
    >>> generator = keras_lt.TextGenerator(model, tokenizer)
    >>> text = generator.generate("to be", max_new_tokens=7)
    >>> text[:5], len(text)
    ('to be', 12)
    >>> len("".join(generator.stream("to be", max_new_tokens=7)))
    7
    """

    def __init__(self, model: keras.Model, tokenizer: Tokenizer) -> None:
        if not isinstance(tokenizer, Tokenizer):
            raise TypeError(
                f"`tokenizer` must be a keras_lt.tokenizers.Tokenizer. Received: {type(tokenizer).__name__}"
            )
        if not isinstance(model, GenerativeMixin):
            raise TypeError(
                "`model` must be a keras_lt model that generates, such as LittleTransformer. "
                f"Received: {type(model).__name__}"
            )
        if model.vocabulary_size != tokenizer.vocabulary_size:
            raise ValueError(
                "`model` and `tokenizer` must have the same number of ids. Received: "
                f"model.vocabulary_size={model.vocabulary_size}, "
                f"tokenizer.vocabulary_size={tokenizer.vocabulary_size}"
            )
        self.model = model
        self.tokenizer = tokenizer

    def generate(
        self,
        texts: str | list[str],
        max_new_tokens: int,
        sampler: Any = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: Any = None,
        stop: str | list[str] | None = None,
        stop_token_ids: Any = None,
        num_samples: int = 1,
    ) -> str | list[str]:
        """Continues texts.

        Args:
            texts: String or list of strings, none of them empty.
            max_new_tokens: Integer. Most tokens to generate for each.
            sampler: As in the model's `generate`. It takes the place of the five settings that follow. Defaults to
                `None`.
            temperature: As in `keras_lt.generation.Sampler`. Defaults to `0.0`, greedy.
            top_k: As in `Sampler`. Defaults to `0`.
            top_p: As in `Sampler`. Defaults to `1.0`.
            min_p: As in `Sampler`. Defaults to `0.0`.
            repetition_penalty: As in `Sampler`. Defaults to `1.0`.
            seed: Integer, or one a text, as in the model's `generate`. Defaults to `None`.
            stop: String or list of strings. The new text ends before the one that is complete first. Defaults to
                `None`.
            stop_token_ids: Integer or list of integers. Ids that end a text. Defaults to `None`: the model's
                `end_token_id`, where it has one.
            num_samples: Integer. Number of continuations of each text. Defaults to `1`.

        Returns:
            The text with its continuation, or the answer to it alone where the model reads a source: a string for a
            string; for a list or several samples a list, the samples of one text side by side. A character that the
            last token leaves incomplete is left out; other bytes that are no UTF-8 become U+FFFD.

        Raises:
            ValueError: If an argument is out of range, or the tokenizer does not know a character.
            TypeError: If a text is no string.
        """
        sampler = _to_sampler(sampler, temperature, top_k, top_p, min_p, repetition_penalty)
        several = _to_texts(texts)
        stops = _to_stops(stop)
        prompts = self._inputs([self._encode(text) for text in several])
        decoding = self.model.start_decoding(
            prompts, max_new_tokens, sampler, seed=seed, stop_token_ids=stop_token_ids, num_samples=num_samples
        )
        if decoding is None:
            return []
        continuations = [_Continuation(self.tokenizer, stops) for _ in range(decoding.num_rows)]
        # The beams of a search change places until its end.
        at_once = not stops or isinstance(sampler, BeamSearch)
        while not decoding.done:
            decoding.advance(None if at_once else _TOKENS_A_SEARCH)
            for number, continuation in enumerate(continuations):
                if not continuation.ended:
                    continuation.read(decoding.new_tokens(number))
            decoding.finish([continuation.ended for continuation in continuations])
        copies = decoding.num_rows // len(several)
        results = [
            ("" if self.model.reads_source else text) + continuations[first * copies + number].all()
            for first, text in enumerate(several)
            for number in range(num_samples)
        ]
        return results[0] if isinstance(texts, str) and num_samples == 1 else results

    def stream(
        self,
        text: str,
        max_new_tokens: int,
        sampler: Any = None,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int | None = None,
        stop: str | list[str] | None = None,
        stop_token_ids: Any = None,
    ) -> Iterator[str]:
        """Continues a text, and gives the new text as it comes, a piece about every 20 milliseconds.

        Args:
            text: String, not empty.
            max_new_tokens: As in `generate`.
            sampler: As in `generate`, but no beam search. Defaults to `None`.
            temperature: As in `generate`. Defaults to `0.0`.
            top_k: As in `generate`. Defaults to `0`.
            top_p: As in `generate`. Defaults to `1.0`.
            min_p: As in `generate`. Defaults to `0.0`.
            repetition_penalty: As in `generate`. Defaults to `1.0`.
            seed: As in `generate`. Defaults to `None`.
            stop: As in `generate`. What may be the beginning of one is held back until that is known. Defaults to
                `None`.
            stop_token_ids: As in `generate`. Defaults to `None`.

        Yields:
            Strings of whole characters, joined what `generate` adds to the text. Closing the iterator frees what it
            holds.

        Raises:
            ValueError: As in `generate`.
            TypeError: If the text is no string.
        """
        sampler = _to_sampler(sampler, temperature, top_k, top_p, min_p, repetition_penalty)
        continuation = _Continuation(self.tokenizer, _to_stops(stop))
        prompt = self._inputs(self._encode(text))
        pieces = self.model.stream(prompt, max_new_tokens, sampler, seed=seed, stop_token_ids=stop_token_ids)
        return _read_pieces(pieces, continuation)

    def score(self, texts: str | list[str], targets: str | list[str] | None = None) -> dict[str, Any]:
        """The log-likelihood of texts: of each token but the first, given those before it.

        Where the model reads a source, it is that of targets, given their sources: of each token and of the end.

        Args:
            texts: String or list of strings.
            targets: String or list of strings, as many as texts; only where the model reads a source, which the texts
                are then. Defaults to `None`.

        Returns:
            A dictionary of NumPy arrays, a number a text: `"log_likelihood"`, float32, in nats, and `"token_counts"`,
            int32, the number of tokens it is the sum over. See the model's `score`.

        Raises:
            ValueError: If the tokenizer does not know a character, or there are targets and no sources, or the other
                way round.
            TypeError: If a text is no string.
        """
        inputs = self._inputs([self._encode(text) for text in _to_texts(texts)])
        if self.model.reads_source != (targets is not None):
            raise ValueError(
                f"`targets` go with a model that reads a source. Received: {type(self.model).__name__} and "
                + ("no targets" if targets is None else "targets")
            )
        if targets is not None:
            start, end = self.model.start_token_id, self.model.end_token_id
            inputs["target"] = [[start, *self._encode(text), end] for text in _to_texts(targets, "targets")]
        return self.model.score(inputs)

    def save(self, directory: str | os.PathLike) -> None:
        """Writes model and tokenizer to a directory: `model.keras`, `tokenizer.json`, `text_generator.json`.

        What was saved there before is replaced once all is written; other files stay.

        Args:
            directory: Path. It is made if it is not there.
        """
        directory = os.fspath(directory)
        os.makedirs(directory, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", suffix=".tmp", dir=directory) as unfinished:
            self.model.save(os.path.join(unfinished, _MODEL))
            self.tokenizer.save(os.path.join(unfinished, _TOKENIZER))
            description = {
                "class_name": "keras_lt.TextGenerator",
                "keras_lt_version": __version__,
                "tokenizer_sha256": _sha256(os.path.join(unfinished, _TOKENIZER)),
            }
            with open(os.path.join(unfinished, _DESCRIPTION), "w", encoding="utf-8") as file:
                file.write(json.dumps(description, indent=2) + "\n")
            for name in (_TOKENIZER, _MODEL, _DESCRIPTION):
                os.replace(os.path.join(unfinished, name), os.path.join(directory, name))

    @classmethod
    def load(cls, directory: str | os.PathLike) -> Self:
        """Reads what `save` wrote, the optimizer with its state and its learning rate schedule included.

        To train on beyond the end of a schedule, `compile` the model anew.

        Args:
            directory: Path.

        Returns:
            A `TextGenerator`.

        Raises:
            FileNotFoundError: If the directory does not hold the three files.
            ValueError: If they do not belong together.
        """
        paths = [os.path.join(os.fspath(directory), name) for name in (_MODEL, _TOKENIZER, _DESCRIPTION)]
        missing = [os.path.basename(path) for path in paths if not os.path.isfile(path)]
        if missing:
            raise FileNotFoundError(
                f"{os.fspath(directory)} holds no saved TextGenerator: there is no {', no '.join(missing)}"
            )
        model, tokenizer, description = paths
        try:
            with open(description, encoding="utf-8") as file:
                digest = json.load(file)["tokenizer_sha256"]
        except (ValueError, TypeError, KeyError):
            raise ValueError(
                f"{description} must be what TextGenerator.save writes. Received: something else"
            ) from None
        if digest != _sha256(tokenizer):
            raise ValueError(
                f"{tokenizer} is not the tokenizer that {description} was written for: a save was interrupted, or the "
                "file was changed. Save again"
            )
        try:
            loaded = keras.saving.load_model(model)
        except Exception as error:
            raise ValueError(f"{model} cannot be loaded; the file may be damaged, or need classes: {error}") from error
        return cls(loaded, Tokenizer.load(tokenizer))

    def __repr__(self) -> str:
        model, tokenizer = type(self.model).__name__, type(self.tokenizer).__name__
        return (
            f"<TextGenerator {model} ({self.model.count_params():,} parameters), "
            f"{tokenizer} ({self.tokenizer.vocabulary_size:,} ids)>"
        )

    def _encode(self, text: str) -> Any:
        check_text("text", text)
        return self.tokenizer.encode(text)

    def _inputs(self, token_ids: Any) -> Any:
        return {"source": token_ids} if self.model.reads_source else token_ids


class _Continuation:
    """The text of new tokens: whole characters, up to a stop string."""

    def __init__(self, tokenizer: Tokenizer, stops: list[str]) -> None:
        self._tokenizer, self._stops = tokenizer, stops
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_read = self._num_taken = 0
        self._text = ""
        self.ended = False

    def read(self, token_ids: Any) -> None:
        """Take in the tokens after those that were read before; `token_ids` are all new tokens."""
        start = max(0, len(self._text) - max(map(len, self._stops), default=1) + 1)
        self._text += self._decoder.decode(self._tokenizer.decode_bytes(token_ids[self._num_read :]))
        self._num_read = len(token_ids)
        found = [(place + len(stop), place) for stop in self._stops if (place := self._text.find(stop, start)) >= 0]
        if found:
            # The one that is complete first, so that nothing hangs on how many tokens are read at once.
            self._text = self._text[: min(found)[1]]
            self.ended = True

    def take(self) -> str:
        """The text that was not taken before, but for an end that may be the beginning of a stop string."""
        held = 0
        if not self.ended:
            longest = max(map(len, self._stops), default=1) - 1
            held = next(
                (n for n in range(longest, 0, -1) if any(s.startswith(self._text[-n:]) for s in self._stops)), 0
            )
            held = min(held, len(self._text))
        return self._take_up_to(len(self._text) - held)

    def rest(self) -> str:
        """What is left when no more tokens come."""
        return self._take_up_to(len(self._text))

    def all(self) -> str:
        """The whole text."""
        return self._text

    def _take_up_to(self, end: int) -> str:
        start, self._num_taken = self._num_taken, max(end, self._num_taken)
        return self._text[start:end]


def _read_pieces(pieces: Iterator[Any], continuation: _Continuation) -> Iterator[str]:
    new_tokens: list[int] = []
    for piece in pieces:
        new_tokens.extend(piece.tolist())
        continuation.read(new_tokens)
        if text := continuation.take():
            yield text
        if continuation.ended:
            return
    if text := continuation.rest():
        yield text


def _to_sampler(sampler: Any, *settings: float) -> Any:
    """The sampler, or the one that the single settings describe."""
    of_settings = Sampler(*settings)
    if sampler is None:
        return of_settings
    if of_settings != Sampler(temperature=0.0):
        raise ValueError(
            "`sampler` takes the place of `temperature`, `top_k`, `top_p`, `min_p` and `repetition_penalty`. "
            f"Received: sampler={sampler!r} and {of_settings!r}"
        )
    return to_method(sampler)


def _to_texts(texts: Any, name: str = "texts") -> list[str]:
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise TypeError(f"`{name}` must be a string or a list of strings. Received: {type(texts).__name__}")
    return [texts] if isinstance(texts, str) else list(texts)


def _to_stops(stop: str | list[str] | None) -> list[str]:
    stops = [] if stop is None else list(stop) if isinstance(stop, (list, tuple)) else [stop]
    if not all(isinstance(text, str) and text for text in stops):
        raise ValueError(f"`stop` must be a string or a list of strings, none of them empty. Received: stop={stop!r}")
    return stops


def _sha256(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.sha256(file.read()).hexdigest()
