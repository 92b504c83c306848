"""A rule of `launch check`, and a problem that it finds."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from typing import NamedTuple

from launcher.check.edit import Edit
from launcher.check.inference.value import Place
from launcher.check.reading.module import Module
from launcher.check.training_script import Script


class Problem(NamedTuple):
    """One place that a rule finds wrong. `mend` says what to write instead; `edits` do it, if they can be made."""

    module: Module
    node: ast.expr | ast.stmt | ast.keyword
    message: str
    mend: str
    edits: tuple[Edit, ...] = ()

    @classmethod
    def at(cls, place: Place, message: str, mend: str, edits: tuple[Edit, ...] = ()) -> Problem:
        """Return a problem at the place of a value."""
        return cls(place.module, place.node, message, mend, edits)


class Rule(NamedTuple):
    """One kind of bug. The texts are for people: `launch check --explain CODE` and the rule's page show them."""

    code: str
    name: str
    what: str
    """The bug, in one line."""
    why: str
    """What happens in the run."""
    bad: str
    """A script that has it."""
    good: str
    """The same script, mended."""
    source: str
    """Where the fact is from."""
    find: Callable[[Script], Iterator[Problem]]
    is_mended: bool = True
    """Whether --fix can mend it."""
    is_adapted: bool = False
    """Whether `launch --adapt` mends it in the run, so that a launch with it says nothing."""
    causes: tuple[str, ...] = ()
    """The classes of failure that it causes: a run that ends with one of them, and whose script has it, names the rule."""
    needs_card: bool = False
    """Whether it is found only for a profile."""
