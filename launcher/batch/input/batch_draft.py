"""An item of a batch before it is queued."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.copy.request import Request
from launcher.values.plan import Finding


class Draft(NamedTuple):
    """An item before it is queued. `values` are its matrix values.

    `run` is the key of its run in the file, empty for a single run. `places` maps each key of its launch to
    the dotted key in the file, e.g. `profile` to `run.2.profile`, for messages. `unnamed` are the matrix keys
    without a placeholder in its command.
    """

    name: str
    request: Request
    hosts: tuple[str, ...]
    values: Mapping[str, Any]
    run: str
    places: Mapping[str, str]
    unnamed: tuple[str, ...]

    @property
    def as_json(self) -> str:
        """Its launch as stored in the queue."""
        return json.dumps(self.request._asdict())

    def place_of(self, key: str) -> str:
        """Return the dotted key in the file that sets a key of its launch."""
        return self.places.get(key, self.run)


class LargeUpload(NamedTuple):
    """A large first upload to a host. The user must confirm it."""

    host: str
    finding: Finding
