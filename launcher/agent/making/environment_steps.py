"""The programs that make and fill an environment: uv, or pip in an environment that venv or uv has made.

uv does not read pip's settings. So pip fills the environment if this host's pip settings contain something
that the client's own settings do not replace, for example an index of the site.
"""

from __future__ import annotations

import configparser
import os
import re
from typing import Iterator, List, NamedTuple, Optional, Tuple, TypedDict

_FOUND_BY = ("index-url", "extra-index-url", "find-links", "no-index")
"""The settings that choose where pip looks for packages."""
_MATTERS = (
    *_FOUND_BY,
    "proxy",
    "client-cert",
    "constraint",
    "only-binary",
    "no-binary",
    "pre",
    "trusted-host",
)
_OF_UV = re.compile(r"The package (`.+)")
_OF_PIP = re.compile(r"\S+ \S+ (?:requires|has requirement|is not supported) ")
MAX_CONFLICTS = 20
_SYSTEM_FILES = ("/etc/pip.conf", "/etc/xdg/pip/pip.conf")
_USER_FILES = (".pip/pip.conf", ".config/pip/pip.conf")


class MakerRecord(TypedDict, total=False):
    """The maker of an environment: `uv` or `venv`, its program and interpreter, and the `uv` that may fill it."""

    kind: str
    program: str
    interpreter: str
    uv: Optional[str]


class EnvironmentOptions(NamedTuple):
    """The maker of an environment, torch's separate index, and whether to use no index at all."""

    maker: MakerRecord
    index_url: Optional[str] = None
    no_index: bool = False


def steps(
    folder: str, path: str, options: EnvironmentOptions, uv: Optional[str]
) -> Iterator[Tuple[str, List[str]]]:
    """Yield the name and command of each step: the empty environment, torch from its index, all requirements.

    If torch has no separate index, one step installs everything. `uv` is the program that fills it; None for
    pip.
    """
    maker = options.maker
    program, interpreter = str(maker.get("program")), str(maker.get("interpreter"))
    more = ["--no-index"] if options.no_index else []
    if uv is not None:
        yield "venv", [uv, "venv", *more, "--python", interpreter, path]
    elif maker.get("kind") == "uv":
        yield "venv", [program, "venv", "--seed", *more, "--python", interpreter, path]
    else:
        yield "venv", [program, "-I", "-m", "venv", path]
    python = os.path.join(path, "bin", "python")
    install = (
        [uv, "pip", "install", *more, "--python", python]
        if uv is not None
        else [python, "-I", "-m", "pip", "install"]
    )
    torch, others = (os.path.join(folder, name) for name in ("torch.txt", "requirements.txt"))
    index = options.index_url
    has_others = os.path.getsize(others) > 0
    if index or not has_others:
        yield "torch", [*install, *(["--index-url", index] if index else []), "-r", torch]
    if has_others:
        yield "requirements", [*install, "-r", torch, "-r", others]


def check(path: str, uv: Optional[str]) -> List[str]:
    """Return the command that checks whether the packages of an environment conflict."""
    python = os.path.join(path, "bin", "python")
    return (
        [uv, "pip", "check", "--python", python] if uv is not None else [python, "-I", "-m", "pip", "check"]
    )


def conflicts(output: str) -> List[str]:
    """Return the conflicts that a check has printed, in pip's form: each line begins with the package."""
    lines = output.splitlines()
    of_uv = [found[1].replace("`", "") for found in map(_OF_UV.match, lines) if found]
    return (of_uv or [line for line in lines if _OF_PIP.match(line)])[:MAX_CONFLICTS]


def uv_that_fills(folder: str, maker: MakerRecord) -> Optional[str]:
    """Return the uv of the maker, unless this host's pip has settings that uv would ignore."""
    uv = maker.get("uv")
    given = _options(os.path.join(folder, "pip_conf"))
    own = {option for file in _pip_files() for option in _options(file)}
    own |= {name[4:].lower().replace("_", "-") for name in os.environ if name.startswith("PIP_")}
    missed = (own - given) & set(_MATTERS)
    if "index-url" in given:
        missed -= set(_FOUND_BY)
    return None if missed or not isinstance(uv, str) else uv


def cache_variables(path: str) -> dict[str, str]:
    """Return the variable for uv's cache if uv's default cache is on another disk than an environment.

    Hard links need both on one disk. A process that can write to uv's cache can change the environments. So
    uv's cache is not in the root's `cache/`, to which containers can write.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    own = os.environ.get("UV_CACHE_DIR") or os.path.join(home, "uv")
    envs = os.path.dirname(path)
    if os.stat(_existing(own)).st_dev == os.stat(_existing(envs)).st_dev:
        return {}
    return {"UV_CACHE_DIR": os.path.join(os.path.dirname(os.path.dirname(envs)), "uv")}


def _existing(path: str) -> str:
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def _pip_files() -> List[str]:
    named = os.environ.get("PIP_CONFIG_FILE")
    home = os.path.expanduser("~")
    return [*_SYSTEM_FILES, *(os.path.join(home, name) for name in _USER_FILES), *([named] if named else [])]


def _options(path: str) -> set[str]:
    """Return the names of the options in a pip settings file; empty if it cannot be read."""
    parser = configparser.RawConfigParser(strict=False)
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError, OSError):
        return set()
    sections = [one for one in ("global", "install") if parser.has_section(one)]
    return {key.replace("_", "-") for section in sections for key, value in parser.items(section) if value}
