"""Check many files, in several processes if that is faster."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import NamedTuple

from launcher.check.file_report import FileChecker, FileReport, Finding
from launcher.check.inference.card_calls import Card
from launcher.errors import LaunchError

_MIN_FILES = 40
"""Fewer files are checked in this process."""
_MAX_CHUNK = 25
"""The files that one process checks at a time: files of one folder import the same modules."""


class Settings(NamedTuple):
    """The card and the rules of a check."""

    card: Card
    codes: frozenset[str]


Progress = Callable[[int], None]
"""Takes the number of files that have been checked."""
Reports = dict[Path, FileReport]


def check_files(
    paths: Sequence[Path], settings: Settings, texts: Mapping[Path, bytes], progress: Progress
) -> Reports:
    """Return the report of each file. `texts` are contents that are not written yet.

    Raises LaunchError if a process that checked files was killed.
    """
    workers = min(_processors(), len(paths) // (_MIN_FILES // 2))
    if len(paths) < _MIN_FILES or workers < 2:
        return _one_after_another(paths, settings, texts, progress)
    try:
        return _in_processes(paths, settings, texts, progress, workers)
    except BrokenProcessPool as error:
        raise LaunchError(
            "a process that checked files was killed, perhaps for lack of memory\n  next   launch check FOLDER, one at a time"
        ) from error


def findings_of(reports: Mapping[Path, FileReport]) -> list[Finding]:
    """Return the problems of all reports in the order of files and lines, each once."""
    found: dict[tuple[str, int, int, int, str], Finding] = {}
    for report in reports.values():
        for one in report.findings:
            known = found.get(one.key)
            if known is None or (one.changes and not known.changes):
                found[one.key] = one
    return [found[key] for key in sorted(found)]


def _one_after_another(
    paths: Sequence[Path], settings: Settings, texts: Mapping[Path, bytes], progress: Progress
) -> Reports:
    checker = FileChecker(*settings, texts)
    reports: Reports = {}
    for path in paths:
        reports[path] = checker.check(path)
        progress(len(reports))
    return reports


def _in_processes(
    paths: Sequence[Path],
    settings: Settings,
    texts: Mapping[Path, bytes],
    progress: Progress,
    workers: int,
) -> Reports:
    size = max(1, min(_MAX_CHUNK, len(paths) // (4 * workers)))
    chunks = [paths[start : start + size] for start in range(0, len(paths), size)]
    how = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    pool = ProcessPoolExecutor(workers, mp_context=how, initializer=_begin)
    reports: Reports = {}
    try:
        waiting: list[Future[Reports]] = [pool.submit(_check_chunk, one, settings, texts) for one in chunks]
        for done in as_completed(waiting):
            reports |= done.result()
            progress(len(reports))
    except BaseException:  # Ctrl-C too: the processes do not see it
        for process in (pool._processes or {}).values():  # noqa: SLF001 - a chunk may take seconds, and its result is not needed
            process.kill()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()
    return {path: reports[path] for path in paths}


def _begin() -> None:
    """Prepare a process: Ctrl-C is for its parent, and syntax trees have no cycles to collect."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.freeze()


def _check_chunk(paths: Sequence[Path], settings: Settings, texts: Mapping[Path, bytes]) -> Reports:
    return _one_after_another(paths, settings, texts, lambda _: None)


def _processors() -> int:
    """Return the number of processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS
        return os.cpu_count() or 1
