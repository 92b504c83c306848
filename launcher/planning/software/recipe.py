"""The input of an image build, for BuildKit and for the classic builder."""

from __future__ import annotations

import re
from collections.abc import Mapping
from configparser import RawConfigParser
from typing import NamedTuple

from launcher.errors import RefusedError
from launcher.planning.software.image_plan import context
from launcher.values.credential import credential_in
from launcher.values.software.image import CA_BUNDLE_AT, BuildOptions, Image

_SECRET_MOUNT = re.compile(r"--mount=type=secret\S*\s+(?:\\\n\s*)?")
_FROM = re.compile(r"^FROM\s.*$", re.MULTILINE | re.IGNORECASE)


class Recipe(NamedTuple):
    """The files of a build's context, its arguments, and the secrets that its steps may read, by id."""

    files: dict[str, bytes]
    arguments: dict[str, str]
    secrets: dict[str, bytes]

    def __repr__(self) -> str:
        """Return only the names of files, arguments and secrets, because their values may be secret."""
        return f"Recipe({', '.join([*self.files, *self.arguments, *self.secrets])})"


def buildkit(image: Image, settings: BuildOptions) -> Recipe:
    """Return the recipe for BuildKit, which keeps secrets out of the image and its history."""
    secrets: dict[str, bytes] = {}
    if settings.pip_conf is not None:
        secrets["pip_conf"] = settings.pip_conf.encode()
    if settings.ca_bundle is not None:
        secrets["ca_bundle"] = settings.ca_bundle
    return Recipe(context(image), _arguments(settings), secrets)


def classic(image: Image, settings: BuildOptions, labels: Mapping[str, str] | None = None) -> Recipe:
    """Return the recipe for the classic builder, which has no secrets: pip's settings become build arguments.

    The arguments stay in the image's history, and a CA bundle stays in the image. `labels` are on the image
    of every step. Raises RefusedError for a credential, which the message names but does not repeat.
    """
    options = pip_options(settings.pip_conf or "")
    for where, key, value in (
        *(("pip_conf", key, value) for key, value in options.items()),
        *(("proxy", key, value) for key, value in settings.proxies.items()),
    ):
        if kind := credential_in(value, key):
            raise RefusedError(
                f"{where}: {key} holds {kind}, which the classic builder would keep in the image's history\n"
                "  BuildKit hands it on as a secret: install Docker's buildx plugin on the host"
                " (a docker program older than 23 needs none)"
            )
    passed = {
        f"PIP_{re.sub('-', '_', key).upper()}": " ".join(value.split()) for key, value in options.items()
    }
    files = context(image)
    added = [f"LABEL {name}={_quoted(value)}" for name, value in (labels or {}).items()]
    added += [f"ARG {name}" for name in sorted(passed)]
    if settings.ca_bundle is not None:
        files["ca_bundle"] = settings.ca_bundle
        added.append(f"COPY ca_bundle {CA_BUNDLE_AT}")
    text = _SECRET_MOUNT.sub("", files["Dockerfile"].decode())
    text = _FROM.sub(lambda found: "\n".join([found[0], *added]), text)
    return Recipe({**files, "Dockerfile": text.encode()}, {**_arguments(settings), **passed}, {})


def _quoted(value: str) -> str:
    """Quote a value for a Dockerfile, where `$` begins a variable."""
    return '"' + re.sub(r'([\\"$])', r"\\\1", value) + '"'


def pip_options(text: str) -> dict[str, str]:
    """Return the options in pip's settings that affect an installation, by their long names.

    Raises configparser.Error for text that is not a settings file.
    """
    parser = RawConfigParser()
    parser.read_string(text)
    return {
        key.replace("_", "-"): value
        for section in ("global", "install")
        if parser.has_section(section)
        for key, value in parser.items(section)
    }


def _arguments(settings: BuildOptions) -> dict[str, str]:
    index = {} if settings.torch_index is None else {"TORCH_INDEX": settings.torch_index}
    return {**index, **settings.proxies}
