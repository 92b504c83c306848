"""Refuse to send a person's API key to a rented machine: a job there could rent or terminate others."""

from __future__ import annotations

import json
from collections.abc import Mapping

from launcher.errors import UsageError
from launcher.rental.provider import module_of
from launcher.values.job import Job
from launcher.values.lambda_settings import LambdaSettings


def check_key_is_not_sent(host: str, job: Job, secrets: Mapping[str, str]) -> None:
    """Raise UsageError if a job, or one of its secrets, holds this person's key, and `host` is where it would go."""
    provider = module_of(LambdaSettings.provider)
    key = provider.person_key()
    if key is None:
        return
    recorded = job.model_dump(mode="json").items()
    texts = [*secrets.items(), *((f"the job's {name}", json.dumps(value)) for name, value in recorded)]
    for where, text in texts:
        if where == provider.VARIABLE or key.is_in(text):
            raise UsageError(
                f"{where}: holds your API key for {host}, which opens the whole account and is never sent to a machine\n"
                "  leave it out; launcher itself reads it here"
            )
