"""What shared code asks of a backend for a run: where it goes, how it begins, goes on and ends."""


class Running:
    """A machine's answers: it is there, and its agent keeps the runs."""
