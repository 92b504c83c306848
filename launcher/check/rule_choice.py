"""Choose rules by their codes, the beginnings of codes, or their names."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.check.rule import Rule
from launcher.check.rules.table import RULES
from launcher.errors import UnknownNameError
from launcher.values.parsing import nearest


def chosen_codes(select: Sequence[str], ignore: Sequence[str]) -> frozenset[str]:
    """Return the codes of some rules, by default of all, without the ignored ones.

    Of two words that mean one rule, the longer one counts, as with ruff. Raises UnknownNameError.
    """
    selected = _by_length("--select", select) if select else dict.fromkeys(RULES, 0)
    ignored = _by_length("--ignore", ignore)
    return frozenset(code for code, length in selected.items() if ignored.get(code, -1) < length)


def rule_called(word: str) -> Rule:
    """Return the rule of a code or a name. Raises UnknownNameError with the nearest one."""
    for rule in RULES.values():
        if word.upper() == rule.code or word.lower() == rule.name:
            return rule
    known = [*RULES, *(rule.name for rule in RULES.values())]
    guess = nearest(word.upper(), RULES) or nearest(word.lower(), known)
    raise UnknownNameError(f"unknown rule '{word}'{guess}\n  all of them   {', '.join(RULES)}")


def _by_length(option: str, words: Sequence[str]) -> dict[str, int]:
    """Return the rules that words mean, each with the length of the longest such word."""
    found: dict[str, int] = {}
    for word in (one.strip() for many in words for one in many.split(",")):
        meant = [code for code, rule in RULES.items() if _means(word, rule)]
        if not meant:
            guess = nearest(word.upper(), RULES)
            raise UnknownNameError(
                f"{option} {word}: unknown rule{guess}\n  all of them   {', '.join(RULES)}"
            )
        length = 0 if word.upper() == "ALL" else len(word)
        for code in meant:
            found[code] = max(length, found.get(code, 0))
    return found


def _means(word: str, rule: Rule) -> bool:
    if word.upper() == "ALL":
        return True
    return bool(word) and (rule.code.startswith(word.upper()) or rule.name == word.lower())
