"""Read the options of a build on a host: pip's settings, certificates, proxies."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from configparser import (
    DuplicateOptionError,
    DuplicateSectionError,
    MissingSectionHeaderError,
    ParsingError,
    RawConfigParser,
)

from launcher.base.bounded_read import read_bounded
from launcher.base.toml import MAX_BYTES
from launcher.errors import BadFileError
from launcher.values.host import Host
from launcher.values.software.image import CA_BUNDLE_AT, BuildOptions

_PROXIES = ("http_proxy", "https_proxy", "no_proxy")


def read(host: Host, environment: Mapping[str, str]) -> BuildOptions:
    """Return the options of a build on a host, from the files that its table names and from variables.

    Raises BadFileError that names file and key. The error never repeats the contents of a file, which may be
    secret.
    """
    build, key = host.build, f"hosts.{host.name}.build"
    ca_bundle = _ca_bundle(build.ca_bundle, f"{key}.ca_bundle") if build.ca_bundle else None
    pip_conf = _pip_conf(build.pip_conf, f"{key}.pip_conf", has_ca_bundle=ca_bundle is not None)
    proxies: dict[str, str] = {}
    if build.proxy:
        variables = {name: environment.get(name) or environment.get(name.upper()) for name in _PROXIES}
        proxies = {name: value for name, value in variables.items() if value}
    return BuildOptions(pip_conf, ca_bundle, proxies, build.network, build.torch_index)


def _ca_bundle(path: str, key: str) -> bytes:
    content = _bytes(path, key)
    if b"PRIVATE KEY" in content:
        raise BadFileError(
            f'{key} = "{path}": holds a private key, which must not be sent: give a file with certificates only'
        )
    if b"-----BEGIN CERTIFICATE-----" not in content:
        raise BadFileError(f'{key} = "{path}": holds no certificate in PEM (-----BEGIN CERTIFICATE-----)')
    return content


def _pip_conf(path: str | None, key: str, *, has_ca_bundle: bool) -> str | None:
    if path is None and not has_ca_bundle:
        return None
    parser = RawConfigParser()
    if path is not None:
        _parse(parser, path, key)
    if has_ca_bundle:
        for section in parser.sections():
            parser.remove_option(section, "cert")
        if not parser.has_section("global"):
            parser.add_section("global")
        parser.set("global", "cert", CA_BUNDLE_AT)
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def _parse(parser: RawConfigParser, path: str, key: str) -> None:
    try:
        parser.read_string(_bytes(path, key).decode())
    except UnicodeDecodeError as error:
        raise BadFileError(f'{key} = "{path}": is not UTF-8 text (byte {error.start})') from None
    except (DuplicateOptionError, DuplicateSectionError) as error:
        raise BadFileError(f'{key} = "{path}": line {error.lineno} repeats an earlier setting') from None
    except ParsingError as error:  # the message of configparser would repeat the line
        line = error.lineno if isinstance(error, MissingSectionHeaderError) else error.errors[0][0]
        raise BadFileError(
            f'{key} = "{path}": line {line}: expected [section], or key = value below a section'
        ) from None
    for section in parser.sections():
        for option in parser.options(section):
            if not re.fullmatch(r"[a-z][a-z0-9_-]*", option):
                raise BadFileError(f'{key} = "{path}": [{section}] has a key that is not an option of pip')


def _bytes(path: str, key: str) -> bytes:
    try:
        return read_bounded(path, MAX_BYTES)
    except OSError as error:
        raise BadFileError(f'{key} = "{path}": cannot be read: {error.strerror}') from error
