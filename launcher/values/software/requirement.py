"""One requirement of a job: PEP 508, without text that has another meaning in a requirements file."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from launcher.values.credential import credential_in

_READ_OTHERWISE = re.compile(r"[^\x20-\x7e]|[\\$]|\s#")
"""Line ends, continuations, variables and comments: in a requirements file pip interprets these before PEP 508."""


def requirement_text(written: str) -> str:
    """Return a requirement without surrounding spaces.

    Raises ValueError or PydanticCustomError for text that is not one.
    """
    from packaging.requirements import InvalidRequirement, Requirement  # most jobs need no package

    if kind := credential_in(written):
        raise PydanticCustomError(
            "credential", f"holds {kind}, which a plan would record: write it into the file of pip_conf"
        )
    if found := _READ_OTHERWISE.search(written):
        raise ValueError(f"a requirement may not hold {found[0]!r}")
    try:
        requirement = Requirement(written)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(
            f"expected a requirement such as 'torch>=2.6': {reason[:1].lower()}{reason[1:]}"
        ) from error
    if requirement.url is not None and not re.match(r"(git\+)?https?://", requirement.url):
        raise ValueError("expected a URL that begins with https:// or git+https://")
    return written.strip()


def distribution(requirement: str) -> str:
    """Return the name of a requirement's distribution, e.g. `torch` of `torch>=2.6`."""
    found = re.match(r"[A-Za-z0-9][A-Za-z0-9._-]*", requirement)
    return found[0] if found else requirement


def package_of(requirement: str) -> str:
    """Return the normalized package name of a valid requirement, e.g. `ruamel-yaml` of `Ruamel.yaml>=0.18`."""
    from packaging.requirements import Requirement

    return normalized(Requirement(requirement).name)


def normalized(name: str) -> str:
    """Return the normalized name of a package."""
    from packaging.utils import canonicalize_name

    return str(canonicalize_name(name))


RequirementText = Annotated[str, AfterValidator(requirement_text)]
"""A requirement as PEP 508 writes it, e.g. `torch>=2.6`."""
