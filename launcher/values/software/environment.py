"""A Python environment for native runs, the counterpart of an image for containers: its contents and its maker."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field

from launcher.values.base import StrictModel


class Environment(StrictModel):
    """The environment of a plan: Python's minor version, what pip installs, and the index of torch's build.

    `name` is the digest of Python, requirements and index. `torch` is the chosen version with its build, e.g.
    `2.13.0+cu126`; it comes from plain PyPI if `torch_index` is None.
    """

    name: Annotated[str, Field(pattern=r"^[0-9a-f]{12}$")]
    python: Annotated[str, Field(pattern=r"^3\.[0-9]{1,2}$")]
    requirements: tuple[str, ...]
    torch: str | None
    torch_index: str | None


class EnvironmentBuilder(NamedTuple):
    """The program that makes an environment on a host: an interpreter's venv module, or uv; `program` is the path.

    `python` is the minor version of the environment. `interpreter` is the environment's Python: a path, or a
    version that uv installs. `uv` is the path of uv if uv makes and fills the environment; None if pip fills
    it, because uv is missing, too old, or lacks one of pip's settings.
    """

    kind: Literal["venv", "uv"]
    program: str
    python: str
    interpreter: str
    uv: str | None = None
