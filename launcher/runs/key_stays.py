"""The key of an account where machines are rented never goes to one: the job there could end, and rent, whatever it likes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import UsageError
from launcher.rental.providers.lambda_credentials import VARIABLE, find_key
from launcher.values.job import Job


def check_key_stays(host: str, job: Job, secrets: Mapping[str, str]) -> None:
    """Raise UsageError if a job, or one of its secrets, holds this person's key, and `host` is where it would go."""
    key = find_key(os.environ, Path.home())
    if key is None:
        return
    recorded = job.model_dump(mode="json").items()
    texts = [*secrets.items(), *((f"the job's {name}", json.dumps(value)) for name, value in recorded)]
    for where, text in texts:
        if where == VARIABLE or key.is_in(text):
            raise UsageError(
                f"{where}: holds your API key for {host}, which opens the whole account and is never sent to a machine\n"
                "  leave it out; launcher itself reads it here"
            )
