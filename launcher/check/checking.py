"""Check files: apply the rules to each, for one card."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from launcher.check.edit import Edit
from launcher.check.inference.card_calls import Card
from launcher.check.inference.infer import Inference
from launcher.check.project import Project
from launcher.check.reading.module import Module
from launcher.check.reading.positions import Region
from launcher.check.required_versions import Requirements
from launcher.check.rule import Problem, Rule
from launcher.check.rules.table import RULES
from launcher.check.training_script import Script

_CONCERNS = re.compile(rb"\b(torch|transformers|accelerate|peft|trl|MASTER_PORT|LOCAL_RANK)\b")
"""A file without any of these words has no problem that a rule knows."""
_IGNORED = re.compile(r"#\s*launch:\s*ignore\[([^\]]*)\]")


class Found(NamedTuple):
    """A problem in a file, for people: where, what, why, and the edits that mend it."""

    path: Path
    line: int
    column: int
    rule: Rule
    message: str
    mend: str
    edits: tuple[Edit, ...]
    region: Region


def is_concerned(source: bytes) -> bool:
    """Whether a rule may find a problem in a source, by the words in it."""
    return _CONCERNS.search(source) is not None


def check_module(
    module: Module, project: Project, card: Card, arguments: tuple[str, ...] | None = None
) -> list[Found]:
    """Return the problems of one script, in the order of the file. Some may be in modules that it imports."""
    if not is_concerned(module.source):
        return []
    folders = list(dict.fromkeys((*_folders(module.path, project.root), project.root)))
    script = Script(module, Inference(card, project.find, arguments), Requirements(folders, module.installs))
    found: dict[tuple[Path, int, int, str], Found] = {}
    for rule in RULES.values():
        for problem in _problems(rule, script):
            if script.is_excluded(problem.node, problem.module):
                continue
            if rule.needs_card and not script.is_reached(problem.node, problem.module):
                continue
            if not _is_ignored(problem, rule):
                one = _found(rule, problem)
                found.setdefault((one.path, one.line, one.column, rule.code), one)
    return sorted(found.values(), key=lambda one: (one.path, one.line, one.column, one.rule.code))


def _folders(path: Path, root: Path) -> list[Path]:
    """Return the folders of a file, from its own up to the root."""
    return [one for one in path.parents if one.is_relative_to(root)] or [path.parent]


def _problems(rule: Rule, script: Script) -> list[Problem]:
    """Return the problems of a script by one rule; none if the script is nested too deeply to be followed."""
    try:
        return [*rule.find(script)]
    except RecursionError:
        return []


def _found(rule: Rule, problem: Problem) -> Found:
    module = problem.module
    region = module.lines.region(*module.span(problem.node))
    place = module.path, region.line, region.column
    return Found(*place, rule, problem.message, problem.mend, problem.edits, region)


def _is_ignored(problem: Problem, rule: Rule) -> bool:
    """Whether a comment in the lines of the problem's node names the rule."""
    module, node = problem.module, problem.node
    start, end = module.lines.offset(node.lineno - 1), module.lines.offset(node.end_lineno or node.lineno)
    text = module.source[start:end].decode(errors="replace")
    names = {rule.code, rule.name}
    found = (re.split(r"[\s,]+", match[1].strip()) for match in _IGNORED.finditer(text))
    return any(not names.isdisjoint(words) for words in found)
