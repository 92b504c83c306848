"""Refuse to send the user's provider API key to a rented machine: with it, a job there could rent or terminate machines."""

from __future__ import annotations

import json
from collections.abc import Mapping

from launcher.errors import UsageError
from launcher.rental.provider import PROVIDERS, module_of
from launcher.values.job import Job


def check_key_is_not_sent(host: str, job: Job, secrets: Mapping[str, str]) -> None:
    """Raise UsageError if a job or secret contains the user's provider key, or a secret has the name of the key's variable.

    `host` is the destination. Raises BadFileError for a key file that others can read.
    """
    recorded = job.model_dump(mode="json").items()
    texts = [*secrets.items(), *((f"the job's {name}", json.dumps(value)) for name, value in recorded)]
    for provider in map(module_of, PROVIDERS):
        key = provider.person_key()
        for where, text in texts:
            if where == provider.SETTINGS.variable or (key is not None and key.is_in(text)):
                raise UsageError(
                    f"{where}: holds your API key for {provider.SETTINGS.provider}, which opens the whole account and is never sent to a machine of {host}\n"
                    "  leave it out; launcher itself reads it here"
                )
