"""The result of a dry run, as text and as JSON: plan, findings, upload, session and rental cost."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import typer

from launcher.cli.output.answer import plain
from launcher.cli.output.say import say
from launcher.cli.text.plan_text import show_findings, show_plan
from launcher.cli.text.rental_text import rental_shape, show_rental
from launcher.cli.text.session_text import session_shape, show_session
from launcher.cli.text.upload_text import show_selection
from launcher.errors import RefusedError

if TYPE_CHECKING:
    from launcher.runs.launch.dry_run import Preview


def show_preview(found: Preview, *, as_json: bool) -> None:
    """Print a preview. Exit with code 3 if the launch would be refused. Equal plans give identical bytes of JSON."""
    if as_json:
        _print_json(found)
    else:
        _print(found)
    if _is_refused(found):
        raise typer.Exit(RefusedError.exit_code)


def _is_refused(found: Preview) -> bool:
    return any(finding.level == "refuse" for finding in found.findings)


def _print(found: Preview) -> None:
    host, plan, findings, selection, session, rental, job_script = found
    show_plan(plan, host, findings)
    if job_script:
        say("  job script", *(f"    {line}" for line in job_script.splitlines()))
    show_selection(selection)
    if session is not None:
        show_session(session)
    if rental is not None:
        show_rental(rental)
    if plan.secrets:
        say(f"  secrets    {', '.join(plan.secrets)}   (from your shell or a file; not shown)")
    show_findings(findings)
    if not _is_refused(found):
        is_blind = any(finding.code == "not-reached" for finding in findings)
        say(
            "not all was checked; nothing was sent"
            if is_blind
            else "the checks pass; nothing was sent"
            if rental is None
            else "the checks pass; nothing was rented or sent"
        )


def _print_json(found: Preview) -> None:
    from launcher.cli.json_output.preview_shapes import PreviewShown, UploadWithPaths

    _, plan, findings, selection, session, rental, job_script = found
    shown = UploadWithPaths(**selection.shown(), paths=sorted(selection.paths))
    places = {
        "session": session_shape(session),
        "rental": rental_shape(rental),
        "job_script": job_script or None,
    }
    values = plain(PreviewShown(plan=plan, digest=plan.digest, findings=findings, cargo=shown, **places))
    ordered = json.loads(json.dumps(values, sort_keys=True))  # noqa: TID251 - our own
    first = {name: ordered.pop(name) for name in ("version", "kind")}
    print(json.dumps({**first, **ordered}, separators=(",", ":")))
