"""gc: free the space on a host that no run needs."""

from __future__ import annotations

import time
from collections import Counter
from typing import Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag


def gc(
    host: HostOption = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List what would be removed; remove nothing.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Free space on a host: remove everything that no run needs.

    This removes unused files, broken uploads, old agents, containers and environments. Runs stay until `launch rm`. Model
    caches stay too. In a Kaggle account it removes the kernels that this computer pushed and no longer needs, and lists other
    kernels named `launch-…`.

    Examples:
        launch gc --host lab --dry-run
    """
    from launcher.base.text import printable
    from launcher.cli.follow.screens import make_stage
    from launcher.cli.output.figures import size_text
    from launcher.cli.output.say import say
    from launcher.config.lookup import Lookup
    from launcher.runs.cleaning import collect_garbage
    from launcher.runs.run_client import connect

    place = Lookup().host(host)
    with connect(place) as client, make_stage("reading") as stage:
        items, unreadable, unknown = collect_garbage(
            client, place, lambda runs: stage.progress(f"{runs} runs"), dry_run=dry_run
        )
    total = sum(item.bytes for item in items)
    if as_json:
        from launcher.cli.json_output.end_shapes import GarbageShown, UnknownRow
        from launcher.cli.output.answer import answer

        rows = [UnknownRow(**one._asdict()) for one in unknown]
        found = {"items": list(items), "unreadable": unreadable, "unknown": rows}
        answer(GarbageShown(host=place.name, dry_run=dry_run, bytes=total, **found))
        return
    sizes: Counter[str] = Counter()
    for item in items:
        sizes[item.kind] += item.bytes
    counts = Counter(item.kind for item in items)
    for kind, size in sizes.most_common():
        say(f"  {counts[kind]:>6} x {kind:<14} {size_text(size)}")
    for run, why in unreadable.items():
        say(f"  {run} unreadable: {printable(why)}   items that it may use are kept")
    for one in unknown:
        say(
            f"  {printable(one.name)}{_age(one.created)}   not of a run on this computer   to delete it   {printable(one.removal)}"
        )
    say(
        f"{place.name}: {size_text(total)} {'would be freed' if dry_run else 'freed'}, {len(items)} thing{'s' * (len(items) != 1)}"
    )


def _age(created: float | None) -> str:
    """Return the age of an object in words, empty if it is unknown."""
    if created is None:
        return ""
    hours = max(0.0, time.time() - created) / 3600
    return f", {hours / 24:.0f} days old" if hours >= 48 else f", {hours:.0f} h old"
