"""The variables that a command line gives to a job, and the objections to recording a job's variables."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from launcher.errors import UsageError
from launcher.values.credential import credential_in
from launcher.values.job import NAME, objection_to
from launcher.values.plan import Finding

_RANDOM = re.compile(r"(?=\S*[0-9])(?=\S*[A-Za-z])\S{16,}")
"""A value that looks random. Shorter values with letters and digits are often plain settings."""


def assigned(words: Sequence[str]) -> dict[str, str]:
    """Return the variables of `-e NAME=VALUE`; a later one wins.

    Raises UsageError, which repeats no value.
    """
    variables: dict[str, str] = {}
    for word in words:
        name, is_assigned, value = word.partition("=")
        if not is_assigned and NAME.fullmatch(name):
            raise UsageError(f"-e {name}: expected NAME=VALUE\n  a secret of your shell   -s {name}")
        if not is_assigned or not name:
            raise UsageError("-e: expected NAME=VALUE, as in   -e WANDB_MODE=offline")
        if objection := objection_to(name):
            raise UsageError(f"-e {name}=…: {name} {objection}")
        variables[name] = value
    return variables


def is_refused(name: str, value: str) -> bool:
    """Return whether the value of a variable is a credential, which must not be recorded."""
    return bool(credential_in(value) or (credential_in(value, name) and _RANDOM.fullmatch(value)))


def findings(variables: Mapping[str, str]) -> Iterator[Finding]:
    """Yield a refusal for each value that is a credential, and a note for each name that suggests one."""
    for name, value in variables.items():
        kind = credential_in(value, name)
        if kind is None:
            continue
        mend = (
            f"give only its name, and the value in your shell   export {name}=…     then   launch -s {name}"
        )
        if is_refused(name, value):
            message = f"variable {name}: it holds {kind}, and variables are recorded"
            yield Finding(level="refuse", code="secret-in-variable", message=message, mend=mend)
        else:
            message = f"variable {name}: its value is recorded, and its name is that of {kind}"
            yield Finding(level="note", code="secret-in-variable", message=message, mend=mend)
