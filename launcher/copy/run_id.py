"""Make run ids, and find the run that a word on the command line names."""

from __future__ import annotations

import re
import secrets
import time

from launcher.errors import SeveralRunsError, UnknownNameError, UsageError

RUN_ID = re.compile(
    r"[0-9]{6}-[a-z0-9](?:[a-z0-9-]{0,24}[a-z0-9])?-[a-z0-9]{6}|[0-9]{4}-[a-z0-9][a-z0-9_.-]{0,47}-[a-z0-9]{4}"
)
"""A run id. Ids had the second of the two forms until 2026-11-22."""
_MAX_NAMED = 8
_NAME_LENGTH = 26
_CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789"


def new_run_id(name: str) -> str:
    """Return a new run id, e.g. `261122-sft-k3f9w2`: the date, the job's name, six random characters.

    It has at most 40 characters, all of them lower-case letters, digits and hyphens, and 31 random bits, so
    that it can name a Slurm job, a Kaggle kernel or a cloud instance.
    """
    day = time.strftime("%y%m%d")
    return f"{day}-{_of_job(name)}-{''.join(secrets.choice(_CHARACTERS) for _ in range(6))}"


def is_of_job(run: str, name: str) -> bool:
    """Whether a run id was made for a job of this name."""
    return _name(run) == _of_job(name)


def _of_job(name: str) -> str:
    """Return a job's name as it stands in a run id."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:_NAME_LENGTH].strip("-") or "run"


def find(word: str, runs: list[str]) -> str:
    """Return the run that a word names: `last`, the start of an id or of its last part, or the run's name.

    A whole id, or its whole last part, takes precedence. A name that is also the start of another run's id is
    ambiguous, because `stop` or `rm` must not affect the wrong run. `runs` is in order, the latest last.
    Raises UnknownNameError if no run matches, UsageError if several do, or SeveralRunsError if the word is
    the whole name of each, so that typing more of it cannot help.
    """
    if word == "last":
        if not runs:
            raise UnknownNameError("no runs yet\n  next   launch")
        return runs[-1]
    exact = [run for run in runs if word in (run, run.rpartition("-")[2])]
    if len(exact) == 1:
        return exact[0]
    matches = [run for run in runs if word and (word == _name(run) or word in _prefixes(run, len(word)))]
    if not matches:
        from launcher.values.parsing import nearest  # loads pydantic, for which completion does not wait

        raise UnknownNameError(
            f"no run '{word}' here{nearest(word, map(_name, runs))}\n  look   launch ps     or on a host   launch ps --host HOST"
        )
    if len(matches) > 1:
        if all(word == _name(run) for run in matches):
            raise SeveralRunsError(word, matches[::-1])
        more = f" and {len(matches) - _MAX_NAMED} more" if len(matches) > _MAX_NAMED else ""
        raise UsageError(
            f"'{word}' matches {len(matches)} runs: {', '.join(matches[:_MAX_NAMED])}{more}\n  type more of an id"
        )
    return matches[0]


def _name(run: str) -> str:
    return run.partition("-")[2].rpartition("-")[0]


def _prefixes(run: str, length: int) -> tuple[str, str]:
    return run[:length], run.rpartition("-")[2][:length]
