"""The command line of a launch, kept beside the run's entry in the index so that it can be launched again."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from launcher.copy.local_copy import LocalCopy
from launcher.errors import UsageError
from launcher.values.precision import PrecisionRequest

NAME = "request.json"
_NOT_AGAIN = {"wait_s": 0.0, "is_sure": False, "most_cents": None, "after": ()}
"""The options that apply to one launch only."""


class Request(NamedTuple):
    """The options of a command line; None for an option that was not given.

    `most_cents` is the cost limit of a batch for one rented machine.
    """

    host: str | None = None
    profile: str | None = None
    job: str | None = None
    runtime: str | None = None
    precision: PrecisionRequest = "auto"
    settings: Sequence[str] = ()
    name: str | None = None
    words: Sequence[str] = ()
    secrets: Sequence[str] = ()
    packages: Sequence[str] = ()
    variables: Sequence[str] = ()
    env_files: Sequence[str] = ()
    rehearses: bool = False
    gpus: str | None = None
    wait_s: float = 0.0
    outputs: Sequence[str] = ()
    is_sure: bool = False
    verifies: bool = False
    allows_substitute: bool = False
    most_cents: int | None = None
    after: Sequence[str] = ()


def remember(local_copy: LocalCopy, request: Request) -> None:
    """Write a request, and the folder that it was made in, beside the run's entry. Raises OSError."""
    asked = {**request._asdict(), **_NOT_AGAIN}
    record = {"version": 1, "folder": str(Path.cwd()), "request": asked}
    local_copy.records.write(NAME, json.dumps(record, default=list).encode())


def recall(local_copy: LocalCopy) -> Request:
    """Return the request that a run came from.

    Raises UsageError if it is not recorded here, or was made in another folder, because its paths refer to
    that folder.
    """
    recorded = _recorded(local_copy)
    if recorded is None:
        raise UsageError(
            f"{local_copy.run}: its command line is not on record here\n"
            f"  from its last checkpoint   launch resume {local_copy.short}\n"
            f"  a new launch               {new_launch(local_copy)}"
        )
    request, folder = recorded
    if folder != Path.cwd():
        raise UsageError(
            f"{local_copy.run} was launched in {folder}, and takes its files from there\n"
            f"  next   cd {shlex.quote(str(folder))} && launch rerun {local_copy.short}"
        )
    return request


def new_launch(local_copy: LocalCopy) -> str:
    """Return the command that launches a run anew: `launch rerun` if its command line is recorded here."""
    if _recorded(local_copy) is not None:
        return f"launch rerun {local_copy.short}"
    return f"launch --host {local_copy.record.plan().host or 'HOST'} …"


def _recorded(local_copy: LocalCopy) -> tuple[Request, Path] | None:
    """Return the request that a run came from and the folder that it was made in; None if they are not recorded here."""
    record = local_copy.records.read_json(NAME)
    try:
        request = TypeAdapter(Request).validate_json(json.dumps(record["request"]))
        return request, Path(str(record["folder"]))
    except (KeyError, ValidationError):
        return None
