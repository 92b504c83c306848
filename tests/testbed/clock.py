"""A monotonic clock that a test sets on."""


class Clock:
    """Begins somewhere, and stands still."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self.now_s
