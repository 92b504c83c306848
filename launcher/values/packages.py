"""What a Python said of its packages, in an image or an environment that was made: see remote/torch_check.py."""

from __future__ import annotations

from launcher.values.base import Record


class Packages(Record):
    """A Python's version; its torch with the CUDA and the architectures that it was built for; what `pip check` said.

    `conflicts` is None where there was no pip to ask, `error` why torch cannot be imported.
    """

    python: str
    torch: str | None = None
    cuda: str | None = None
    architectures: tuple[str, ...] = ()
    conflicts: tuple[str, ...] | None = None
    error: str | None = None
