"""batch --dry-run: each item, host by host, with its plan's digest and its findings."""

from __future__ import annotations

import typer

from launcher.base.text import first_of
from launcher.batch.batch_budget import spending
from launcher.batch.input.batch_file import Batch
from launcher.batch.input.batch_preview import ItemPreview, previews
from launcher.cli.commands.batch.batch_table import COLUMNS
from launcher.cli.follow.screens import make_stage
from launcher.cli.output.columns import Column, print_columns
from launcher.cli.output.say import complain, say
from launcher.cli.text.plan_text import show_findings
from launcher.errors import HostError
from launcher.values.plan import Plan

_COLUMNS = (
    COLUMNS[0],
    Column("PLAN"),
    Column("CARD", 9, drop=3),
    Column("PRECISION", drop=2),
    Column("", 30, wraps=True),
)


_OWN = "its own"
"""The text for a script that decides its precision itself."""


def show_preview(batch: Batch, *, is_sure: bool, as_json: bool) -> None:
    """Print the plan and findings of each item on each of its hosts.

    Exit with 3 if an item can run on none of its hosts, or if a large upload or cost needs consent and `is_sure` is False.
    Exit with 4 if an item cannot be checked because its hosts do not answer. Raises UsageError if machines would be rented
    without a limit on their total cost.
    """
    large = () if is_sure else batch.large
    found = []
    with make_stage("plans") as stage:
        for number, one in enumerate(previews(batch), start=1):
            stage.progress(f"{number} of {sum(len(draft.hosts) for draft in batch.drafts)}")
            found.append(one)
    if as_json:
        from launcher.cli.json_output.run_shapes import BatchPreviewed
        from launcher.cli.output.answer import answer

        for one in found:
            plan = one.preview.plan if one.preview is not None else None
            answer(
                BatchPreviewed(
                    name=one.draft.name,
                    host=one.host,
                    card=plan.card_title if plan else None,
                    precision=_precision(plan) if plan else None,
                    digest=plan.digest if plan else None,
                    findings=[
                        *(one.preview.findings if one.preview is not None else ()),
                        *(more.finding for more in large if more.host == one.host),
                    ],
                    problem=one.problem,
                    values=dict(one.draft.values),
                )
            )
    else:
        for host in dict.fromkeys(one.host for one in found):
            say(f"on {host}")
            print_columns(_COLUMNS, [_cells(one) for one in found if one.host == host])
        _show_notes(found)
        show_findings(one.finding for one in large)
    for problem in dict.fromkeys(one.problem for one in found if one.is_silent and one.problem):
        complain(problem)
    is_rented = any(one.preview is not None and one.preview.rental is not None for one in found)
    nothing = "nothing was rented or sent" if is_rented else "nothing was sent"
    fits = {one.draft.name for one in found if _fits(one)}
    if without := [draft.name for draft in batch.drafts if draft.name not in fits]:
        unknown = {one.draft.name for one in found if one.is_silent}
        are_refused = not unknown.issuperset(without)
        why = (
            "can run on none of the hosts" if are_refused else "cannot be checked without a host that answers"
        )
        say(f"{first_of(without, 5)}: {why}; {nothing}")
        raise typer.Exit(3 if are_refused else HostError.exit_code)
    cost = spending([draft.hosts for draft in batch.drafts], batch.rules.max_cost, "launch batch --yes …")
    question = cost.question if cost is not None and not is_sure else None
    if question is not None:
        complain(f"would ask: {question.message}\n  {question.mend}")
    if large or question is not None:
        raise typer.Exit(3)
    if not as_json:
        count = len(batch.drafts)
        checks = "not all was checked" if _is_unseen(found) else "the checks pass"
        say(f"{count} item{'s' * (count != 1)}; {checks}; {nothing}")


def _is_unseen(found: list[ItemPreview]) -> bool:
    """Whether an item was planned without an answer of its host."""
    seen = [one.preview.findings for one in found if one.preview is not None]
    return any(finding.code == "not-reached" for findings in seen for finding in findings)


def _show_notes(found: list[ItemPreview]) -> None:
    """Print each note once, even if several items have it."""
    notes = [
        finding
        for one in found
        if one.preview is not None
        for finding in one.preview.findings
        if finding.level == "note"
    ]
    show_findings(dict.fromkeys(notes))


def _precision(plan: Plan) -> str | None:
    """Return the precision that a plan gives its script; None if the script decides it."""
    return plan.ladder[0].mode if plan.hands_out("precision") else None


def _fits(one: ItemPreview) -> bool:
    return one.preview is not None and all(finding.level != "refuse" for finding in one.preview.findings)


def _cells(one: ItemPreview) -> tuple[str, ...]:
    if one.preview is None:
        return one.draft.name, "-", "-", "-", (one.problem or "").splitlines()[0]
    plan, findings = one.preview.plan, one.preview.findings
    said = [finding.message.splitlines()[0] for finding in findings if finding.level == "refuse"]
    passes = "; ".join(said) or ("not checked: no answer" if _is_unseen([one]) else "passes")
    return one.draft.name, plan.digest[:16], plan.card_title, _precision(plan) or _OWN, passes
