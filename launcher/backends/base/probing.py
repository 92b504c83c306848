"""What shared code asks of a backend before a plan: which cards there are, or are expected, and how they are shown."""


class Probing:
    """A machine's answers: its probe finds them."""
