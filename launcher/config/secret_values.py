"""Secrets on the client: names from the job and the command line, values from this process's variables or a file."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence

from launcher.config.env_file import HiddenValues
from launcher.errors import UsageError
from launcher.values.job import NAME, Job, objection_to, secrets_of
from launcher.values.plan import Finding

SHORTEST = 4  # characters; hiding a shorter value would remove too much text
_PLAIN = re.compile(
    r"[+-]?[\d.,_]{1,7}(?:e[+-]?\d{1,3})?|true|false|yes|no|on|off|none|null|auto", re.IGNORECASE
)
_TOO_COMMON = f"a value of fewer than {SHORTEST} characters, a number of up to 7, or a word like `true`"
_OURS = {"PATH", "HOME", "PYTHONPATH", "PYTHONHOME", "PYTHONUNBUFFERED", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"}  # fmt: skip
_OUR_PREFIXES = ("LAUNCH_", "LD_", "DYLD_")
_RECORDED = ("command", "model", "teacher", "data", "settings", "variables", "requirements", "code", "name")
NO_VALUES = HiddenValues()
FROM_A_FILE = "     or a file that has it   --env-file FILE"
"""The end of the message about a secret that is not set. For a batch it is left out: a batch has no --env-file."""


def with_names(job: Job, names: Sequence[str]) -> Job:
    """Return a job with the secrets of a command line and of its `on_end` added.

    Raises UsageError for an invalid name. Text that is not a name is not repeated in the message, because it
    may be a secret value.
    """
    names = (*job.secrets, *secrets_of(job.on_end), *names)
    for name in names:
        before, is_assigned, _ = name.partition("=")
        if is_assigned and NAME.fullmatch(before):
            raise UsageError(
                f"secret {before}=…: give only its name: the value comes from your shell\n"
                f"  set it   export {before}=…     then   launch --secret {before}"
            )
        if not NAME.fullmatch(name):
            raise UsageError(
                "secrets: expected the name of an environment variable\n  as in   launch --secret HF_TOKEN"
            )
        if name in _OURS or name.startswith(_OUR_PREFIXES):
            raise UsageError(f"secret {name}: this variable controls how the job runs; choose another name")
        if name in job.variables:
            raise UsageError(f"{name} is both a variable, which is recorded, and a secret: give it once")
    return job.model_copy(update={"secrets": tuple(dict.fromkeys(names))})


def with_file(job: Job, given: HiddenValues, named: Collection[str]) -> tuple[Job, HiddenValues]:
    """Return a job with the variables of --env-file as secrets, and their values.

    `named` are the variables of -e and --secret, which win over the file; the file wins over the job's variables.
    Raises UsageError for a variable that controls how the job runs.
    """
    taken = {name: value for name, value in given.values.items() if name not in named}
    for name in taken:
        if objection := _objection(name):
            raise UsageError(f"--env-file: {name} {objection}")
    variables = {name: value for name, value in job.variables.items() if name not in taken}
    secrets = tuple(dict.fromkeys((*job.secrets, *taken)))
    return job.model_copy(update={"variables": variables, "secrets": secrets}), HiddenValues(taken)


def _objection(name: str) -> str | None:
    """Return the reason why a variable cannot be a secret; None if it can."""
    if name not in _OURS and not name.startswith(_OUR_PREFIXES):
        return None
    if objection := objection_to(name):
        return f"{objection}\n  take it out of the file"
    return f"controls how the job runs, and is recorded\n  pass it separately, which wins over the file   -e {name}=…"


def findings(given: HiddenValues) -> tuple[Finding, ...]:
    """Return a note on the values of a file that cannot be hidden in a run's output."""
    shown = [name for name, value in given.values.items() if _is_in_every_log(value)]
    if not shown:
        return ()
    message = f"--env-file: {', '.join(shown)}: {_TOO_COMMON} cannot be hidden in the run's output"
    return (Finding(level="note", code="secret-too-short", message=message),)


def _is_in_every_log(value: str) -> bool:
    """Return whether hiding a value would falsify a log; the agent uses the same rule."""
    return len(value.strip()) < SHORTEST or _PLAIN.fullmatch(value.strip()) is not None


def values(job: Job, given: HiddenValues = NO_VALUES) -> dict[str, str]:
    """Return a job's secrets by name: the `given` values, others from this process's variables.

    A byte that is not UTF-8 becomes a lone surrogate. Raises UsageError for a value that is not set, that is
    too short to be hidden, or that the job itself contains.
    """
    found = {name: given.values[name] if name in given.values else _value(name) for name in job.secrets}
    check_recorded(job, found, given)
    return found


def check_recorded(job: Job, known: Mapping[str, str], given: HiddenValues = NO_VALUES) -> None:
    """Raise UsageError if the recorded parts of a job contain one of these secrets.

    `known` has the values by name.
    """
    recorded = {
        key: json.dumps(one) for key, one in job.model_dump(mode="json", include=set(_RECORDED)).items()
    }
    for name, value in known.items():
        written = json.dumps(value.strip())[1:-1]
        key = next((key for key, text in recorded.items() if written in text), None)
        if key is not None and not _is_in_every_log(value):
            raise UsageError(
                f"secret {name}: its value is in the job's {key}, which is recorded\n"
                f'  let the script read it   os.environ["{name}"]'
                + (f"     if it is not a secret   -e {name}=…" if name in given.values else "")
            )


def _value(name: str) -> str:
    value = os.environb.get(name.encode(), b"").decode("utf-8", "surrogateescape")
    if not value:
        raise UsageError(f"secret {name}: it is not set here\n  set it   export {name}=…{FROM_A_FILE}")
    if _is_in_every_log(value):
        raise UsageError(f"secret {name}: {_TOO_COMMON} cannot be hidden in the run's files")
    return value
