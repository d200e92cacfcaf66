"""Tokenizers as TensorFlow graphs: their vocabulary lies in the graph as constants."""

import codecs

import numpy as np

from keras_lt.tokenizers import ByteTokenizer, CharTokenizer


def graph_tokenizer(tokenizer):
    """The graph form of a tokenizer, or `None` where it has none.

    Args:
        tokenizer: `keras_lt.tokenizers.Tokenizer`.

    Returns:
        An object with the methods `encode` and `decode`.
    """
    if isinstance(tokenizer, CharTokenizer):
        return _GraphCharTokenizer(tokenizer.vocabulary)
    return _GraphByteTokenizer() if isinstance(tokenizer, ByteTokenizer) else None


class _GraphCharTokenizer:
    def __init__(self, vocabulary):
        code_points = np.array([ord(character) for character in vocabulary], "int32")
        self._code_points = code_points
        self._order = np.argsort(code_points).astype("int32")

    def encode(self, texts):
        """Strings `(B,)` to ids, a ragged tensor of B rows; an InvalidArgument names the first that has none."""
        import tensorflow as tf

        with tf.control_dependencies([_check_utf8(texts)]):
            code_points = tf.strings.unicode_decode(texts, "UTF-8")
        in_order = self._code_points[self._order]
        places = tf.searchsorted(in_order, code_points.flat_values)
        places = tf.minimum(places, len(in_order) - 1)
        known = tf.equal(tf.gather(in_order, places), code_points.flat_values)
        unknown = tf.reduce_any(code_points.with_flat_values(tf.logical_not(known)), axis=1)
        message = f"Texts may hold no character that the vocabulary of {len(in_order)} lacks. Received: text number"
        with tf.control_dependencies([_check(tf.logical_not(unknown), message, texts)]):
            return code_points.with_flat_values(tf.gather(self._order, places))

    def decode(self, token_ids):
        """Ids, a ragged tensor of B rows, to strings `(B,)`."""
        import tensorflow as tf

        code_points = token_ids.with_flat_values(tf.gather(self._code_points, token_ids.flat_values))
        return tf.strings.unicode_encode(code_points, "UTF-8")


class _GraphByteTokenizer:
    def encode(self, texts):
        """Strings `(B,)` to ids, a ragged tensor of B rows; an InvalidArgument names the first that is no UTF-8."""
        import tensorflow as tf

        with tf.control_dependencies([_check_utf8(texts)]):
            single = tf.strings.bytes_split(texts)
        values = tf.reshape(tf.io.decode_raw(single.flat_values, tf.uint8), [-1])
        return single.with_flat_values(tf.cast(values, tf.int32))

    def decode(self, token_ids):
        """Ids, a ragged tensor of B rows, to strings `(B,)`: no half character at the end, U+FFFD for no UTF-8."""
        import tensorflow as tf

        lengths = token_ids.row_lengths()
        dense = token_ids.to_tensor(shape=(None, None))
        dense = tf.pad(dense, [[0, 0], [3, 0]])
        last = tf.gather(dense, tf.cast(lengths[:, None], tf.int32) + tf.range(3), batch_dims=1)
        after_one, after_two = _held_back()
        two = last[:, 0] * 256 + last[:, 1]
        third_follows = tf.logical_and(last[:, 2] >= 0x80, last[:, 2] < 0xC0)
        three_held = (last[:, 0] >= 0xF0) & tf.gather(after_two, two) & third_follows
        held = tf.where(
            tf.gather(after_one, last[:, 2]),
            1,
            tf.where(tf.gather(after_two, last[:, 1] * 256 + last[:, 2]), 2, tf.where(three_held, 3, 0)),
        )
        kept = tf.maximum(lengths - tf.cast(held, lengths.dtype), 0)
        table = tf.constant([bytes([value]) for value in range(256)])
        single = tf.RaggedTensor.from_tensor(tf.gather(table, dense[:, 3:]), lengths=kept)
        joined = tf.strings.reduce_join(single, axis=-1)
        return tf.strings.unicode_transcode(joined, "UTF-8", "UTF-8", errors="replace", replacement_char=0xFFFD)


def _held_back():
    """After which last byte, and which last two, a character is incomplete, as Python's decoder has it."""

    def waits(prefix):
        return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(prefix) == ""

    one = np.array([waits(bytes([first])) for first in range(256)])
    two = np.array([one[first] and waits(bytes([first, second])) for first in range(256) for second in range(256)])
    return one, two


def _check_utf8(texts):
    import tensorflow as tf

    valid = tf.equal(tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace"), texts)
    return _check(valid, "Texts must be UTF-8. Received: text number", texts)


def _check(good, message, texts):
    """An assertion that, where a row is not good, gives the number and the text of the first."""
    import tensorflow as tf

    number = tf.argmin(tf.concat([tf.cast(good, tf.int32), [1]], 0), output_type=tf.int32)
    shown = tf.strings.substr(tf.gather(tf.concat([texts, [""]], 0), number), 0, 100)
    shown = tf.strings.unicode_transcode(shown, "UTF-8", "UTF-8", errors="replace")
    return tf.debugging.Assert(tf.reduce_all(good), [message, number, shown])
