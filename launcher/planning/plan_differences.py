"""Find the differences between the plans of several runs, by the plan's keys, with each value in JSON and in words."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import ValidationError
from rich.filesize import decimal

from launcher.base.json_file import flat
from launcher.values.plan import Plan, Split
from launcher.values.precision import Precision
from launcher.values.public_result import public

Group = Literal["settings", "plan", "packages"]
UNKNOWN = "?"
"""The words for a value of a run whose plan is not on this computer."""
NONE = "-"
_OF_PACKAGES = ("requirements", "packages_from", "environment", "host_environment", "image")
_FOLLOWS = {
    "model_facts": ("model",),
    "teacher_facts": ("teacher",),
    "nodes": ("split",),
    "allocation": ("profile", "split"),
    "session": ("profile",),
    "slurm.cards": ("profile", "ladder", "split"),
    "slurm.nodes": ("slurm.flags",),
    "slurm.time_s": ("slurm.flags",),
    "environment.requirements": ("requirements",),
    "image.requirements": ("requirements",),
    "image.dockerfile": ("requirements", "image.torch"),
}
"""Keys whose values follow from other keys. If one of those differs too, a difference here adds no information."""
_NAMES_OF_CONTENT = ("environment.name", "image.name")
"""Names that are digests of their neighbours' values."""


@public("DifferenceShown", internal=("words",))
class Difference(NamedTuple):
    """A key in which plans differ, and its value in each plan: null if the plan lacks the key or is unknown."""

    group: Group
    key: str
    values: tuple[Any, ...]
    words: tuple[str, ...]


def plan_differences(plans: Sequence[Mapping[str, Any] | None]) -> list[Difference]:
    """Return the differences between plans in JSON. None stands for an unknown plan, which is not compared."""
    known = [plan for plan in plans if plan is not None]
    keys = {**dict.fromkeys(Plan.model_fields), **{key: None for plan in known for key in plan}}
    differing = [key for key in keys if _differ([plan.get(key) for plan in known])]
    found: list[Difference] = []
    for key in differing:
        if not {*_FOLLOWS.get(key, ())} & {*differing}:
            found += _of_key(key, [plan.get(key) for plan in known])
    paths = {*differing, *(one.key for one in found)}
    shown = [one for one in found if not {*_FOLLOWS.get(one.key, ())} & paths]
    return [_with_unknown(one, [plan is not None for plan in plans]) for one in shown]


def _of_key(key: str, values: list[Any]) -> Iterator[Difference]:
    """Yield the differences of a key of the plan: one for the key if words distinguish its values, else one per part."""
    if key == "data":
        for name in sorted({name for value in values for name in value or {}}):
            sources = [(value or {}).get(name) for value in values]
            yield from _of_key(f"data.{name}", sources) if _differ(sources) else ()
        return
    for in_words in (_source,) if key.startswith("data.") else _IN_WORDS.get(key, ()):
        with contextlib.suppress(ValidationError, KeyError, TypeError, IndexError):
            words = [NONE if value is None else in_words(value) for value in values]
            if _tell_apart(words, values):
                yield _difference(key, values, words)
                return
    parts = [dict(flat(_numbered(value), key)) for value in values]
    for path in dict.fromkeys(path for part in parts for path in part):
        leaves = [part.get(path) for part in parts]
        if _differ(leaves) and path not in _NAMES_OF_CONTENT and not path.endswith(".why"):
            yield _difference(path, leaves, _leaf_words(path, leaves))


def _difference(key: str, values: list[Any], words: list[str]) -> Difference:
    top = key.partition(".")[0]
    group: Group = "settings" if top == "settings" else "packages" if top in _OF_PACKAGES else "plan"
    return Difference(group, key, tuple(values), tuple(words))


def _with_unknown(difference: Difference, is_known: Sequence[bool]) -> Difference:
    """Return a difference between known plans, extended by a value for each unknown plan."""
    values, words = iter(difference.values), iter(difference.words)
    return difference._replace(
        values=tuple(next(values) if known else None for known in is_known),
        words=tuple(next(words) if known else UNKNOWN for known in is_known),
    )


def _numbered(value: Any) -> Any:
    """Convert a list of objects to an object whose keys are their numbers, from 1."""
    if isinstance(value, list) and value and all(isinstance(inner, dict) for inner in value):
        return {str(number): inner for number, inner in enumerate(value, 1)}
    return value


def _differ(values: list[Any]) -> bool:
    return len({_canonical(value) for value in values}) > 1


def _tell_apart(words: list[str], values: list[Any]) -> bool:
    return len({*words}) == len({_canonical(value) for value in values})


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _source(value: Mapping[str, Any]) -> str:
    return f"host:{value['value']}" if value["kind"] == "host" else str(value["value"])


_IN_WORDS: dict[str, tuple[Callable[[Any], str], ...]] = {
    "profile": (lambda profile: str(profile["title"]),),
    "ladder": (
        lambda ladder: Precision.model_validate(ladder[0]).title,
        lambda ladder: "; ".join(Precision.model_validate(rung).title for rung in ladder),
    ),
    "split": (lambda split: Split.model_validate(split).title,),
    "model": (_source,),
    "teacher": (_source,),
    "command": (shlex.join,),
    "pull_limit": (decimal,),
}
"""The functions that put a key's value into words. The first whose words distinguish the values is used."""


def _leaf_words(path: str, values: list[Any]) -> list[str]:
    """Return values in words. For lists of text, such as requirements, omit the texts that all lists have."""
    lists = [value or [] for value in values if value is None or _is_texts(value)]
    if len(lists) == len(values):
        shared = {*lists[0]}.intersection(*lists)
        words = [", ".join(text for text in texts if text not in shared) or NONE for texts in lists]
        if _tell_apart(words, lists):
            return words
    if path == "image.dockerfile":
        return [NONE if value is None else _digest(str(value)) for value in values]
    words = [value_words(value) for value in values]
    if _tell_apart(words, values):
        return words
    return [NONE if value is None else json.dumps(value) for value in values]


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def value_words(value: Any) -> str:
    """Return a value of a plan in words."""
    if value is None or value in ({}, []):
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return value if isinstance(value, str) and value else json.dumps(value)
