"""What shared code asks of a backend for a plan: what a task may ask for there, and what a plan has more."""


class Planning:
    """A machine's answers: a plan has nothing of its own."""
