"""Images: how a host builds them, what one is, and the settings of a build."""

from __future__ import annotations

import re
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field
from pydantic_core import PydanticCustomError

from launcher.values.base import Written
from launcher.values.credential import credential_in

CA_BUNDLE_AT = "/run/secrets/ca_bundle"
"""Where a build step finds the certificates to trust."""

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
        raise PydanticCustomError("credential", f"holds {kind}, which an image's history would keep: that is for pip_conf")  # fmt: skip
    if written and not re.fullmatch(r"https?://[A-Za-z0-9._~:/?#\[\]@!&()*+,;=%-]+", written):
        raise ValueError('expected the URL of a package index, or "" for none')
    return written


Reference = Annotated[str, AfterValidator(_reference)]
"""The name of an image: `repository`, `repository:tag`, `repository@sha256:…`."""

Here = Annotated[str, Field(min_length=1)]
"""A path on this machine; in a file, relative to it."""

Network = Literal["default", "host", "none"]


class Build(Written):
    """How images are built on a host, as its `[hosts.NAME.build]` table says.

    `base` is the image to start from: any with python3 and pip. `network` is that of the build's steps. `pip_conf` and
    `ca_bundle` are files here: pip's settings, and certificates to trust. `proxy` hands on the proxies of this
    environment. `torch_index` replaces the index of torch's wheels; "" leaves them to pip_conf. Only `base` is part of
    what an image is.
    """

    base: Reference = "python:3.12-slim-bookworm"
    network: Network = "default"
    pip_conf: Here | None = None
    ca_bundle: Here | None = None
    proxy: bool = False
    torch_index: Annotated[str, AfterValidator(_index)] | None = None


class Image(Written):
    """The image of a plan: its name, and the Dockerfile and requirements that it is made of.

    `dockerfile` None means an image of the user's own, which is never built; `torch` is what ours was chosen to have, with
    its build, e.g. `2.13.0+cu126`. Code is in none: it is mounted.
    """

    name: Reference
    dockerfile: str | None
    requirements: tuple[str, ...]
    torch: str | None = None


class BuildOptions(NamedTuple):
    """What a build is given beside its content: no part of the image or of its name, and perhaps secret.

    `pip_conf` is the text of pip's settings, which names `CA_BUNDLE_AT` where there is a `ca_bundle`. `torch_index`
    None means the Dockerfile's own.
    """

    pip_conf: str | None = None
    ca_bundle: bytes | None = None
    proxies: dict[str, str] = {}
    network: Network = "default"
    torch_index: str | None = None

    def __repr__(self) -> str:
        """Name what is set; values may be secret."""
        given = [name for name in ("pip_conf", "ca_bundle", "proxies", "torch_index") if getattr(self, name)]
        return f"BuildOptions({', '.join([*given, self.network])})"
