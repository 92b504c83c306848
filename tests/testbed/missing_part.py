"""The error for a part of the testbed that this machine lacks. Nothing is imported: .ci/run makes an image before .venv is there."""


class MissingPartError(Exception):
    """Raised when this machine lacks a part; the text says which, and how to get it."""
