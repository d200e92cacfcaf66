import math
from typing import NamedTuple


class Windows(NamedTuple):
    """Where whole windows lie in a stream of ids, for the objectives that read in both directions.

    One begins every `stride` ids. One that would reach past the end is moved back to end there: it is full of real
    ids, some of which stood in the window before it, and are not new.
    """

    length: int
    stride: int
    num_windows: int
    num_ids: int

    def places(self, numbers, arrays):
        """The place of each id of some windows in the stream, `(B, length)`, and which of those places are new."""
        begin = (numbers * self.stride)[:, None]  # (B, 1)
        places = arrays.minimum(begin, self.num_ids - self.length) + arrays.arange(0, self.length)
        return places, places >= begin


def split_into_windows(num_ids, sequence_length, stride, validation_split):
    """Windows to train with and, from the last part of the ids, those that are held out: side by side, none dropped.

    Args:
        num_ids: Integer, the length of the stream.
        sequence_length: Positive integer, the length of a window.
        stride: Positive integer, the distance between the starts of training windows.
        validation_split: Float in [0, 1), the part of the ids, taken from the end, that is held out.

    Returns:
        Training windows, and held-out ones or `None`; each counts places from where its part of the stream begins.

    Raises:
        ValueError: If a part is asked for and holds no window.
    """
    split = math.floor(num_ids * (1.0 - validation_split))
    held_out = num_ids - split
    if split < sequence_length or (validation_split and held_out < sequence_length):
        raise ValueError(
            f"A window takes sequence_length={sequence_length} ids. Received: {split} for training and {held_out} held "
            f"out (validation_split={validation_split})"
        )
    train = Windows(sequence_length, stride, (split - sequence_length) // stride + 1, split)
    if not validation_split:
        return train, None
    return train, Windows(sequence_length, sequence_length, -(-held_out // sequence_length), held_out)
