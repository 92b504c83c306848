"""Images: their contents, how a host builds them, and the options of a build."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from launcher.values.base import StrictModel
from launcher.values.credential import credential_in

CA_BUNDLE_AT = "/run/secrets/ca_bundle"
"""The path of the trusted certificates in a build step."""

_HOST = r"[a-zA-Z0-9](?:[a-zA-Z0-9.-]*[a-zA-Z0-9])?(?::\d{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@sha256:[0-9a-f]{{64}})?",
    re.ASCII,
)


def _reference(written: str) -> str:
    if len(written) > 255 or not _REFERENCE.fullmatch(written):
        raise ValueError("expected an image: repository, repository:tag or repository@sha256:…")
    return written


def _index(written: str) -> str:
    if kind := credential_in(written):
        raise PydanticCustomError("credential", f"holds {kind}, which an image's history would keep: write it into the file of pip_conf")  # fmt: skip
    if written and not re.fullmatch(r"https?://[A-Za-z0-9._~:/?#\[\]@!&()*+,;=%-]+", written):
        raise ValueError('expected the URL of a package index, or "" for none')
    return written


Reference = Annotated[str, AfterValidator(_reference)]
"""The name of an image: `repository`, `repository:tag`, `repository@sha256:…`."""

Here = Annotated[str, Field(min_length=1)]
"""A path on this machine; in a file, relative to that file."""

Network = Literal["default", "host", "none"]


class Build(StrictModel):
    """The way to build images on a host, from its `[hosts.NAME.build]` table."""

    base: Reference = "python:3.12-slim-bookworm"
    """The image to start from: any with `python3` and pip. Only this key affects an image's contents."""
    network: Network = "default"
    """The network of the build's steps."""
    pip_conf: Here | None = None
    """A file on this computer with pip's settings."""
    ca_bundle: Here | None = None
    """A file on this computer with trusted certificates."""
    proxy: bool = False
    """Pass on `http_proxy`, `https_proxy` and `no_proxy`."""
    torch_index: Annotated[str, AfterValidator(_index)] | None = None
    """The index of torch's wheels; by default PyTorch's. With `""` they come from the index in `pip_conf`."""


class Image(StrictModel):
    """The image of a plan: its name, and the Dockerfile and requirements that it is made of.

    `dockerfile` is None for an image that the user supplies, which is never built. `torch` is the version
    chosen for an image that launcher builds, e.g. `2.13.0+cu126`. An image never contains the job's code,
    which is mounted.
    """

    name: Reference
    dockerfile: str | None
    requirements: tuple[str, ...]
    torch: str | None = None


class BuildOptions(NamedTuple):
    """The options of a build. They are not part of the image or its name, and may be secret.

    `pip_conf` is the text of pip's settings, which names `CA_BUNDLE_AT` if `ca_bundle` is given. `torch_index` None means
    the index in the Dockerfile.
    """

    pip_conf: str | None = None
    ca_bundle: bytes | None = None
    proxies: dict[str, str] = {}
    network: Network = "default"
    torch_index: str | None = None

    def __repr__(self) -> str:
        """Name the options that are set, but no values, which may be secret."""
        given = [name for name in ("pip_conf", "ca_bundle", "proxies", "torch_index") if getattr(self, name)]
        return f"BuildOptions({', '.join([*given, self.network])})"
