"""Results that --json prints unchanged: each of their fields is a public key."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from typing import Annotated, Any, Literal, TypeVar

R = TypeVar("R", bound=type)


def public(name: str, *, internal: Container[str] = ()) -> Callable[[R], R]:
    """Have pydantic read and write a NamedTuple as an object with a key for each field but the `internal` ones.

    `name` is its name in docs/json-schema.json; the class's docstring is the description there.
    """

    def mark(result: R) -> R:
        def schema(_: type, _source: Any, handler: Any) -> Any:
            from pydantic import ConfigDict, create_model  # few commands print JSON

            fields: dict[str, Any] = {
                key: (getattr(hint, "__forward_arg__", hint), ...)
                for key, hint in result.__annotations__.items()
                if key not in internal
            }
            model = create_model(
                name,
                __config__=ConfigDict(extra="forbid", allow_inf_nan=False, from_attributes=True),
                __doc__=result.__doc__,
                __module__=result.__module__,
                **fields,
            )
            return handler.generate_schema(model)

        result.__get_pydantic_core_schema__ = classmethod(schema)  # type: ignore[attr-defined]
        return result

    return mark


class _NameIfNotFinite:
    """Have pydantic write a non-finite number as its name, because strict JSON cannot express it."""

    def __get_pydantic_core_schema__(self, _source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        printed = handler.generate_schema(float | Literal["nan", "inf", "-inf"])
        return core_schema.no_info_before_validator_function(as_json, printed)


Number = Annotated[float, _NameIfNotFinite()]
"""A number; one that is not finite is printed as its name, e.g. `nan`."""


def as_json(value: float | str) -> float | str:
    """Return a number in a form that strict JSON allows: a non-finite number becomes its name.

    A name is returned as it is.
    """
    if isinstance(value, str) or math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
