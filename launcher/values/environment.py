"""An environment for native runs, as an image is one for containers: what is in it, and what makes it."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from launcher.values.base import Written


class Environment(Written):
    """The environment of a plan: Python's minor version, what pip installs, and the index of torch's build.

    `name` is the digest of these alone. `torch` is the one that was chosen, with its build, e.g. `2.13.0+cu126`;
    `torch_index` None means that plain PyPI has it.
    """

    name: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    python: Annotated[str, Field(pattern=r"^3\.[0-9]{1,2}$")]
    requirements: tuple[str, ...]
    torch: str | None
    torch_index: str | None


class Maker(NamedTuple):
    """What can make an environment on a host: venv by an interpreter's path, or the program uv at its path.

    `python` is the minor version that comes of it; `interpreter` what uv is told to take: a path, or a version of its own.
    """

    kind: Literal["venv", "uv"]
    program: str
    python: str
    interpreter: str
