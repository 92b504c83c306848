"""Explain a failed build from its output: the lines that show the cause, their meaning, and the remedy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from packaging.utils import canonicalize_name

from launcher.values.software.image import BuildOptions

MAX_LINES = 5
LAST_LINES = 15


class BuildFailure(NamedTuple):
    """The cause (None if unknown), the lines that show it, and the remedy."""

    what: str | None
    lines: tuple[str, ...]
    mend: str


class Indexes(NamedTuple):
    """The package indexes of a build: torch's own URL, if any, and whether pip_conf sets the index of the other packages."""

    torch: str | None = None
    has_pip_conf: bool = False

    def concerns_torch(self, lines: Iterable[str]) -> bool:
        """Return whether lines of a build's output concern torch's own index."""
        return self.torch is not None and any("torch" in line for line in lines)

    def asked(self, lines: Iterable[str]) -> str:
        """Return the package index that a build used, judged by these lines of its output."""
        if self.torch is not None and self.concerns_torch(lines):
            return self.torch
        return "the index in pip_conf" if self.has_pip_conf else "PyPI"


def indexes(default: str | None, options: BuildOptions) -> Indexes:
    """Return the indexes of a build; `default` is torch's unless the options set another."""
    torch = default if options.torch_index is None else options.torch_index
    return Indexes(torch or None, options.pip_conf is not None)


class _Cause(NamedTuple):
    pattern: re.Pattern[str]
    what: str
    mend: str
    is_of_index: bool = False


def _cause(pattern: str, what: str, mend: str, *, is_of_index: bool = False) -> _Cause:
    return _Cause(re.compile(pattern), what, mend, is_of_index)


WITHOUT_TORCH_INDEX = (
    'torch_index = "" in [hosts.{host}.build]: torch then comes from the index in pip_conf too'
)
"""The remedy if torch's own index fails on a host whose pip_conf sets another index."""
AS_THE_OTHERS = (
    'torch_index = "" in [hosts.{host}.build]: torch then comes from the index of the other packages; or'
)
"""The first remedy if torch's own index fails on a host without pip_conf.

Without pip_conf, pip may still use a mirror, set for example in /etc/pip.conf.
"""


CAUSES = (
    _cause(
        r"[Nn]o space left on device|disk quota exceeded",
        "the host has no space left for it; images are on the disk of its engine",
        "free some space   launch image prune --host {host}     launch gc --host {host}",
    ),
    _cause(
        r"python3: (?:command )?not found|exec: \"?python3\"?: executable file not found",
        "its base has no python3",
        "base = … for {host}: an image with python3 and pip",
    ),
    _cause(r"No module named '?pip'?", "its base has no pip", "base = … for {host}: an image with python3 and pip"),
    _cause(
        r"CERTIFICATE_VERIFY_FAILED|invalid peer certificate|certificate verify failed|x509: certificate signed by unknown",
        "a certificate on the way to the index is not trusted there",
        "ca_bundle = … in [hosts.{host}.build]: the certificates to trust",
        is_of_index=True,
    ),
    _cause(
        r"\b(?:401 Unauthorized|403 Forbidden|401 Client Error|403 Client Error)\b|unauthorized: authentication required",
        "the index, or the registry, refuses access",
        "pip_conf = … in [hosts.{host}.build]: pip's settings with a login",
        is_of_index=True,
    ),
    _cause(
        r"Temporary failure in name resolution|dns error|tcp connect error|Name or service not known|Failed to establish a new connection"
        r"|Network is unreachable|ConnectTimeout|Connection to \S+ timed out|i/o timeout|no such host"
        r"|Read timed out|RemoteDisconnected|Connection reset by peer|Cannot connect to proxy",
        "the index, or the registry, cannot be reached from there",
        'network = "host", proxy = true, or pip_conf = … with an index that it reaches, in [hosts.{host}.build]',
        is_of_index=True,
    ),
    _cause(
        r"toomanyrequests",
        "the registry limits the requests from this host",
        "try again later, or base = … for {host}: the same image of another registry",
    ),
    _cause(
        r"manifest unknown|manifest for \S+ not found|pull access denied|repository does not exist",
        "its base image cannot be pulled",
        "base = … for {host}: an image that its engine can pull",
    ),
    _cause(
        r"requires a different Python|Ignored the following versions that require a different python version",
        "a requirement does not support the base's Python",
        "another version of it in the job's requirements, or base = … for {host}",
    ),
    _cause(
        r"ResolutionImpossible|because these package versions have conflicting dependencies",
        "its requirements exclude each other",
        "the job's requirements: fewer pins, or others",
    ),
    _cause(
        r"\btorch(?:vision|audio)?(?:[=<>!~]=?\S+)? was not found in the |that satisfies the requirement torch(?:vision|audio)?\b[^(]*\(from versions: none\)",
        "the index of torch's builds does not have torch",
        "torch_index = … in [hosts.{host}.build]: an index that has it",
        is_of_index=True,
    ),
    _cause(
        r"\bno versions? of torch(?:vision|audio)?[=<>!]|No matching distribution found for torch(?:vision|audio)?\b|that satisfies the requirement torch(?:vision|audio)?\b",
        "the index of torch's builds does not have this version",
        "torch_index = … in [hosts.{host}.build]: an index that has it; or another torch in the job's requirements",
        is_of_index=True,
    ),
    _cause(
        r"No matching distribution found for|Could not find a version that satisfies the requirement"
        r"|was not found in the (?:package registry|provided package locations|cache)|\b(?:is|are) no versions? of \S+",
        "one of the requirements is in no index of this build",
        "another version in the job's requirements, or an index that has it: pip_conf = … in [hosts.{host}.build]",
        is_of_index=True,
    ),
    _cause(
        r"No solution found when resolving dependencies|we can conclude that your requirements are",
        "its requirements exclude each other",
        "the job's requirements: fewer pins, or others",
    ),
    _cause(
        r"command '?(?:\S*/)?(?:x86_64-linux-gnu-)?(?:gcc|g\+\+|cc|nvcc)'? failed|Python\.h: No such file"
        r"|CUDA_HOME environment variable is not set|error: Microsoft Visual|unable to execute '?(?:gcc|cc|g\+\+)",
        "a requirement must be compiled, and its base lacks a compiler or headers",
        "a version of it that has a wheel, or base = … for {host}: one with compilers (CUDA's: a -devel image)",
    ),
    _cause(
        r"exit code: 137|signal: killed|\bKilled\b|Cannot allocate memory",
        "it was killed, probably because the host ran out of memory",
        "more memory on the host, or fewer requirements",
    ),
)  # fmt: skip
"""Ordered: an earlier cause may produce the output of a later one."""


def build_failure(lines: Sequence[str], host: str, asked: Indexes) -> BuildFailure:
    """Return why a build failed, from its output lines, and which of the `asked` indexes is concerned."""
    tried_again = [line for line in lines if "WARNING: Retrying" in line]
    certain = [line for line in lines if "WARNING: Retrying" not in line]
    given_up = _given_up(tried_again, certain)
    for cause, among in ((cause, among) for among in (given_up, certain, tried_again) for cause in CAUSES):
        found = dict.fromkeys(line for error in _errors(among) for line in _shown(error, cause.pattern))
        if found:
            what = f"{cause.what} (asked: {asked.asked(found)})" if cause.is_of_index else cause.what
            mend = cause.mend
            if cause.is_of_index and asked.concerns_torch(found):
                mend = WITHOUT_TORCH_INDEX if asked.has_pip_conf else f"{AS_THE_OTHERS}\n  {mend}"
            return BuildFailure(what, tuple(found)[:MAX_LINES], mend.format(host=host))
    return BuildFailure(None, tuple(lines)[-LAST_LINES:], "the cause is unknown: read its last lines above")


def _errors(lines: Iterable[str]) -> list[list[str]]:
    """Group lines by error. The causes that uv prints below an error are in its group."""
    errors: list[list[str]] = []
    for line in lines:
        if errors and _CAUSE_OF.match(line):
            errors[-1].append(line)
        else:
            errors.append([line])
    return errors


def _shown(error: list[str], pattern: re.Pattern[str]) -> list[str]:
    """Return the lines of an error that match, and the line with the URL that failed; empty if no line matches."""
    matching = [line for line in error if pattern.search(line)]
    return [line for line in error if line in matching or "Failed to fetch" in line] if matching else []


_CAUSE_OF = re.compile(r"\s+(?:cause|Caused by): ")


def _given_up(tried_again: Iterable[str], certain: Iterable[str]) -> list[str]:
    """Return pip's last tries to fetch the page of a package for which it found no version.

    If pip cannot fetch a page, it prints only that it retries, and then that the package does not exist.
    """
    missing = {canonicalize_name(found[1]) for found in map(_NONE, certain) if found}
    last = ((_LAST_TRY(line), line) for line in tried_again)
    return [line for found, line in last if found and canonicalize_name(found[1]) in missing]


_NONE = re.compile(r"that satisfies the requirement ([\w.-]+)[^(]*\(from versions: none\)").search
_LAST_TRY = re.compile(r"Retry\(total=0,.*: /(?:\S*/)?([\w.-]+)/?$").search
