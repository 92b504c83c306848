"""explain: which precisions a card and a job allow, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.options import CardOption, HostOption, JobOption, JsonFlag, PrecisionOption, SetOption


def explain(
    host: HostOption = None,
    profile: CardOption = None,
    job: JobOption = None,
    precision: PrecisionOption = "auto",
    settings: SetOption = None,
    probe: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ask no host, but this `launch probe --json`.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print the ladder of precisions for a card and a job: the rungs, best first, and why not the others.

    Examples:  launch explain --profile titan_rtx --job sft     launch explain --host lab --set method=full
    """
    from launcher.cli.say import say
    from launcher.runs.launching import Request, saved_probe
    from launcher.runs.launching import explain as found

    request = Request(host=host, profile=profile, job=job, precision=precision, settings=settings or ())
    case, (rungs, excluded) = found(request, saved_probe(probe) if probe else None)
    if as_json:
        values = {
            "version": 1,
            "profile": case.profile.name,
            "method": case.method,
            "model": case.model.model_dump(mode="json") if case.model else None,
            "ladder": [one.model_dump(mode="json") for one in rungs],
            "excluded": [one.model_dump(mode="json") for one in excluded],
        }
        print(json.dumps(values))
        return
    from launcher.values.precision import SHORT

    rows = [("rung", "precision", "base", "trained", "scaler", "why here")]
    for number, one in enumerate(rungs, start=1):
        name = one.title.split(",")[0].removesuffix(" + scaler")
        scaler = "yes" if one.scaler else "-"
        rows.append((str(number), name, SHORT[one.base_dtype], SHORT[one.trainable_dtype], scaler, one.why))
    for no in excluded:
        base = SHORT[no.base_dtype] if no.base_dtype else "-"
        why = f"only as --precision {no.mode}: {no.why}" if no.on_request else f"excluded: {no.why}"
        rows.append(("-", no.mode, base, "-", "-", why))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    say(
        *(
            "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]])
            for row in rows
        )
    )
    if case.model is None:
        say("the model is not known here: one born in bf16, or too large, would change the order")
