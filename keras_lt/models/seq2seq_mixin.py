import numpy as np
from keras import ops

from keras_lt.backend import check_number
from keras_lt.generation.generative_mixin import GenerativeMixin
from keras_lt.generation.prompts import to_rows
from keras_lt.layers.composite_layer import check_shape
from keras_lt.models.language_model import check_ids_shape


class Seq2SeqMixin(GenerativeMixin):
    """What the models share that read a source and write a target: their inputs, and what decoding begins with."""

    input_keys = ("source", "target", "source_padding_mask", "target_padding_mask")
    id_keys = ("source", "target")
    reads_source = True

    def _check_marks(self):
        for name in ("start_token_id", "end_token_id"):
            value = getattr(self, name)
            # Where id 0 is padding, no mark can be 0.
            check_number(name, value, int(self.mask_zero), self.vocabulary_size - 1, whole=True)
            setattr(self, name, int(value))

    def _unpack(self, inputs, symbolic=False):
        """The source, the mask of its real ids or `None`, the target and its mask."""
        source, target, source_mask, target_mask = self._by_key(inputs)
        check_shape("target", target, (source.shape[0], None))
        source_mask = self._to_mask("source_padding_mask", source_mask, source, symbolic)
        return source, source_mask, target, self._to_mask("target_padding_mask", target_mask, target, symbolic)

    def _unpack_source(self, source):
        """The same of a source alone, as `build_cache` takes it."""
        if source is None:
            raise ValueError(f"{type(self).__name__} reads a source: pass `source` to `build_cache`. Received: None")
        source = source if isinstance(source, dict) else {"token_ids": source}
        token_ids, padding_mask = source["token_ids"], source.get("padding_mask")
        check_ids_shape('source["token_ids"]', token_ids)
        return token_ids, self._to_mask('source["padding_mask"]', padding_mask, token_ids)

    def compute_mask(self, inputs, previous_mask=None):
        return self._unpack(inputs)[3]

    def _has_prompts(self, token_ids):
        return "target" in token_ids

    def _to_rows(self, token_ids, lengths):
        sources = self._to_sources(token_ids)
        if "target" not in token_ids:
            raise ValueError('To score, pass targets beside the sources. Received: no "target"')
        targets = self._real_rows(token_ids, "target", lengths)
        if len(targets) != len(sources):
            raise ValueError(f"There must be a target for each source. Received: {len(sources)}, {len(targets)}")
        return targets, sources

    def _to_prompts(self, token_ids, lengths):
        if isinstance(token_ids, dict) and self._has_prompts(token_ids):
            return self._to_rows(token_ids, lengths)
        sources = self._to_sources(token_ids)
        if lengths is not None:
            raise ValueError('`lengths` are of the targets. Received: lengths and no "target"')
        return [np.array([self.start_token_id], "int32") for _ in sources], sources

    def _to_sources(self, token_ids):
        if not isinstance(token_ids, dict) or "source" not in token_ids or not set(token_ids) <= set(self.input_keys):
            received = f"the keys {tuple(token_ids)}" if isinstance(token_ids, dict) else type(token_ids).__name__
            raise ValueError(
                f'{type(self).__name__} takes a dictionary of "source" and, for `score` or to go on with it, "target", '
                f"each a list of sequences of ids or an array. Received: {received}"
            )
        sources = self._real_rows(token_ids, "source")
        for number, source in enumerate(sources):
            if not len(source):
                raise ValueError(f"Source {number} is empty: there is nothing to read")
            if self.max_sequence_length is not None and len(source) > self.max_sequence_length:
                raise ValueError(
                    f"A source may have at most {self.max_sequence_length} tokens "
                    f"(max_sequence_length={self.max_sequence_length}). Received: source {number} of {len(source)}"
                )
        return sources

    def _real_rows(self, token_ids, name, lengths=None):
        rows = to_rows(token_ids[name], self.vocabulary_size, lengths, name=name)
        masks = token_ids.get(f"{name}_padding_mask")
        if masks is not None:
            masks = [np.asarray(mask).astype("bool") for mask in _to_list(masks)]
            sizes = [[len(row) for row in rows] for rows in (_to_list(token_ids[name]), masks)]
            if sizes[0] != sizes[1]:
                raise ValueError(
                    f"`{name}_padding_mask` must have the lengths of the sequences, {sizes[0]}. Received: {sizes[1]}"
                )
            rows = [row[mask[: len(row)]] for row, mask in zip(rows, masks, strict=True)]
        return [row[row != 0] for row in rows] if self.mask_zero else rows

    def _real(self, token_ids):
        return self._to_mask("target_padding_mask", None, token_ids)


def _to_list(rows):
    return rows if isinstance(rows, (list, tuple)) else list(ops.convert_to_numpy(rows))
