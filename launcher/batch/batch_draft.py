"""An item of a batch before it is queued."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from launcher.copy.request import Request
from launcher.values.plan import Finding


class Draft(NamedTuple):
    """An item before it is queued. `values` are those of the matrix.

    `run` is its run's key in the file, empty for the only one. `places` are the dotted keys that its launch is from, e.g.
    `profile` from `run.2.profile`, for messages. `unnamed` are the keys of the matrix that its command does not name.
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
        """Its launch as it is queued."""
        return json.dumps(self.request._asdict())

    def place_of(self, key: str) -> str:
        """Return where the file has what its launch has as this key."""
        return self.places.get(key, self.run)


class Large(NamedTuple):
    """Much that would travel to a host for the first time, which a person agrees to first."""

    host: str
    finding: Finding
