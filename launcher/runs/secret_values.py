"""Secrets on the client: names from the job and the command line, values only from this process's variables."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence

from launcher.errors import UsageError
from launcher.values.job import Job

SHORTEST = 4  # characters; a shorter value stands in too many places to be hidden
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OURS = {"PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}  # fmt: skip
_OUR_PREFIXES = ("LAUNCH_", "LD_", "DYLD_")
_RECORDED = ("command", "model", "data", "settings", "requirements", "code", "name")


def with_names(job: Job, names: Sequence[str]) -> Job:
    """Return a job with the secrets of a command line added; raise UsageError for an invalid name.

    Text that is not a name is not repeated in the message, because it may be a value.
    """
    for name in (*job.secrets, *names):
        before, is_assigned, _ = name.partition("=")
        if is_assigned and _NAME.fullmatch(before):
            raise UsageError(
                f"secret {before}=…: its name alone, for its value comes from your environment\n"
                f"  set it   export {before}=…     then   launch --secret {before}"
            )
        if not _NAME.fullmatch(name):
            raise UsageError(
                "secrets: expected the name of an environment variable\n  as in   launch --secret HF_TOKEN"
            )
        if name in _OURS or name.startswith(_OUR_PREFIXES):
            raise UsageError(f"secret {name}: this variable says how the job runs; name another")
    return job.model_copy(update={"secrets": tuple(dict.fromkeys((*job.secrets, *names)))})


def values(job: Job) -> dict[str, str]:
    """Return a job's secrets by name, from this process's variables; a byte that is not UTF-8 becomes a lone surrogate.

    Raises UsageError for a value that is not set, that is too short to be hidden, or that the job itself contains.
    """
    found = {name: _value(name) for name in job.secrets}
    recorded = {
        key: json.dumps(one) for key, one in job.model_dump(mode="json", include=set(_RECORDED)).items()
    }
    for name, value in found.items():
        written = json.dumps(value.strip())[1:-1]
        key = next((key for key, text in recorded.items() if written in text), None)
        if key is not None:
            raise UsageError(
                f"secret {name}: its value stands in the job's {key}, which goes on record\n"
                f'  let the script read it   os.environ["{name}"]'
            )
    return found


def _value(name: str) -> str:
    value = os.environb.get(name.encode(), b"").decode("utf-8", "surrogateescape")
    if not value:
        raise UsageError(f"secret {name}: it is not set here\n  set it   export {name}=…")
    if len(value.strip()) < SHORTEST:
        raise UsageError(
            f"secret {name}: a value of fewer than {SHORTEST} characters cannot be hidden in what the run writes"
        )
    return value
