class DecodingMethod:
    """Base of the ways to choose the next tokens: what the decode loop asks of them, and when two are equal.

    Settings can go into a compiled loop as inputs, so that other values need no other loop; `loop_key` says what a loop
    does depend on: the object, unless a subclass knows better.
    """

    def loop_key(self):
        """What a compiled loop depends on, hashable."""
        # The compiled loop keeps the object alive, and so its number its own.
        return type(self), id(self)

    def settings(self):
        """The settings as NumPy scalars, inputs of the loop."""
        return {}

    def rows_per_prompt(self, num_samples):
        """How many rows a prompt takes in the loop."""
        return num_samples

    def initial_state(self, num_rows):
        """What the loop keeps for this method: a dictionary of arrays whose first axis is the row."""
        return {}

    def choose(self, logits, state, active, inputs):
        """Choose the next token of each row.

        Args:
            logits: Tensor of shape `(B, V)`.
            state: Dictionary of tensors, the state of the loop.
            active: Boolean tensor of shape `(B,)`: the rows that go on.
            inputs: Dictionary of tensors, the inputs of the loop; the settings are in `"settings"`.

        Returns:
            The ids, `(B,)`, -1 where the logits are no numbers; the row that each continues, `(B,)`, or `None` where
            all continue themselves; and a dictionary of changed parts of the state.
        """
        raise NotImplementedError

    def get_config(self):
        return {}

    @classmethod
    def from_config(cls, config):
        """Make one from what `get_config` gives."""
        return cls(**config)

    def __eq__(self, other):
        return type(other) is type(self) and other.get_config() == self.get_config()

    def __hash__(self):
        return hash((type(self), *self.get_config().values()))

    def __repr__(self):
        settings = ", ".join(f"{name}={value!r}" for name, value in self.get_config().items())
        return f"{type(self).__name__}({settings})"
