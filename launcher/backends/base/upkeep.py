"""What shared code asks of a backend beside its runs: what a batch costs and waits for, and what is to be removed."""


class Upkeep:
    """A machine's answers: it costs nothing."""
