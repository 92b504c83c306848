"""The pages of the rules of `launch check`, made from the rules."""

from collections.abc import Callable

from lookup.fields import table

from launcher.check.rule import Rule
from launcher.check.rules.table import RULES


def index_page() -> str:
    """Return the table of all rules."""
    rows = [
        (
            f"[{rule.code}]({rule.code}.md)",
            rule.name,
            rule.what,
            "yes" if rule.is_mended else "",
            "yes" if rule.needs_card else "",
        )
        for rule in RULES.values()
    ]
    return (
        "# Rules of launch check\n\n[`launch check`](../check.md) finds these bugs. *Mended*: `--fix` can mend them. "
        "*Card*: found only with `--profile`.\n\n" + table(("code", "name", "bug", "mended", "card"), rows)
    )


def rule_page(rule: Rule) -> str:
    """Return the page of one rule."""
    card = "It is found only with `--profile`." if rule.needs_card else "It is found for any card."
    mended = "`launch check --fix` mends it" if rule.is_mended else "It has no automatic mend"
    if rule.is_mended and rule.is_adapted:
        mended += ", and so does [`launch --adapt`](../your-own-script.md#unmodified-with-adapt) in the run, without a change of the file"
    return (
        f"# {rule.code}: {rule.name}\n\n{_sentence(rule.what)}\n\n{card} {mended}.\n\n"
        f"## Why\n\n{rule.why}\n\n## Instead of\n\n```python\n{rule.bad.rstrip()}\n```\n\n"
        f"## Write\n\n```python\n{rule.good.rstrip()}\n```\n\n## Ignore\n\n"
        f"Write `# launch: ignore[{rule.code}]` at the end of a line of the expression.\n\n## Source\n\n{rule.source}\n"
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:].rstrip(".") + "."


RULE_PAGES: dict[str, Callable[[], str]] = {
    "index.md": index_page,
    **{f"{code}.md": (lambda rule=rule: rule_page(rule)) for code, rule in RULES.items()},
}
