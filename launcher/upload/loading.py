"""Load a launch: determine its upload, before the host is contacted."""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from launcher.config import resolve
from launcher.config.local_paths import values_of
from launcher.config.lookup import Lookup
from launcher.copy.runs_folder import runs_folder
from launcher.planning.script.source import source
from launcher.upload import named_paths
from launcher.upload.digests import Digests
from launcher.upload.tree import CodeTree, collect
from launcher.values.plan import Finding
from launcher.values.upload_selection import ExclusionReason, JobSource, UploadSelection

MAX_NAMED = 5
"""The number of files in the list of the largest files."""


class Load(NamedTuple):
    """The upload of a launch, file by file, and its totals."""

    tree: CodeTree
    selection: UploadSelection
    digests: Digests


def load(task: resolve.Task, env_files: Iterable[str] = (), lookup: Lookup | None = None) -> Load:
    """Collect the upload of a task. It is empty, with findings, if one of the task's paths is refused.

    A missing path is skipped. `env_files` are those of the command line: they are not sent. Raises UsageError
    for an unreadable file.
    """
    sources = [JobSource(key, written, source(written)) for key, written in values_of(task.job)]
    paths = {one.key: task.locate(one.key, one.source.value) for one in sources if one.source.kind == "local"}
    local = {key: path for key, path in paths.items() if path.is_dir() or path.is_file()}
    hidden, digests = _hidden(env_files, lookup or Lookup()), Digests(task.code)
    refusals = tuple(named_paths.refusals(task, local, hidden, digests))
    tree = CodeTree([], []) if refusals else collect(task.code, local, hidden, digests)
    digests.save()
    return Load(tree, _selection(task.code, tree, sources, refusals), digests)


def _hidden(env_files: Iterable[str], lookup: Lookup) -> dict[str, ExclusionReason]:
    """Return the paths that are excluded everywhere.

    These are the folder of the local copies, and the files named by hosts' tables or on the command line.
    """
    hidden = {str(runs_folder()): ExclusionReason.RUNS}
    for file in env_files:
        hidden |= dict.fromkeys(_spellings(file), ExclusionReason.ENV_FILE)
    for host in lookup.written_hosts.values():
        for path in (host.build.pip_conf, host.build.ca_bundle, host.identity_file):
            if path is not None:
                hidden |= dict.fromkeys(_spellings(path), ExclusionReason.BUILD_FILE)
    return hidden


def _spellings(path: str | Path) -> tuple[str, str]:
    """Return the absolute path of a file as written, and the same path with its links resolved."""
    absolute = os.path.abspath(os.path.expanduser(path))
    return absolute, os.path.realpath(absolute)


def _selection(
    code: Path, tree: CodeTree, sources: list[JobSource], findings: tuple[Finding, ...]
) -> UploadSelection:
    sizes = {entry.source: entry for entry in tree.entries if entry.is_file}
    largest = heapq.nsmallest(MAX_NAMED, sizes.values(), key=lambda entry: (-entry.size, entry.path))
    return UploadSelection(
        folder=code,
        files=sum(entry.folder is None for entry in tree.entries),
        bytes=sum(entry.size for entry in sizes.values()),
        largest=tuple((entry.name, entry.size) for entry in largest),
        left_out=tuple(sorted(tree.left_out, key=lambda one: (one.key or "", one.path))),
        sources=tuple(_with_sizes(one, tree) for one in sources),
        paths=frozenset(entry.name for entry in tree.entries if entry.path.startswith("code/")),
        findings=findings,
        included=tree.included,
    )


def _with_sizes(one: JobSource, tree: CodeTree) -> JobSource:
    top = f"data/{one.key.rpartition('.')[2]}/"
    sizes = [entry.size for entry in tree.entries if entry.path.startswith(top) and entry.folder is None]
    return one._replace(files=len(sizes), bytes=sum(sizes))
