"""The two base classes of values, and their canonical JSON."""

from __future__ import annotations

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

_LAZY = ConfigDict(defer_build=True)
"""Each model is built on first use, not on import. A command uses few of them, so this saves 0.1 s in all."""


class StrictModel(BaseModel):
    """A value that the user wrote, or that launcher derived. It is frozen; unknown keys are errors."""

    model_config = ConfigDict(**_LAZY, frozen=True, extra="forbid", allow_inf_nan=False)


class Record(BaseModel):
    """A value that a run recorded. It is frozen; unknown fields are ignored.

    A run may last a week, so an older or newer client may read its records: unknown fields must not be an
    error. Numbers are finite.
    """

    model_config = ConfigDict(**_LAZY, frozen=True, extra="ignore", allow_inf_nan=False)

    @classmethod
    def lenient(cls, values: object) -> Self:
        """Return the record that another machine sent; fields of the wrong type are ignored.

        Raises ValidationError if a required field is missing or wrong.
        """
        try:
            return cls.model_validate(values, strict=True)
        except ValidationError as error:
            wrong = {found["loc"][0] for found in error.errors() if found["loc"]}
            if not isinstance(values, dict) or not wrong:
                raise
            return cls.model_validate(
                {key: value for key, value in values.items() if key not in wrong}, strict=True
            )


def canonical_json(value: BaseModel | dict[str, Any]) -> str:
    """Return the JSON of a value, the same bytes for equal values: sorted keys, no spaces, no non-finite numbers."""
    plain = value.model_dump(mode="json") if isinstance(value, BaseModel) else value
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
