"""trust: let what a project's files say of hosts, secrets and ends count."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.say import complain
from launcher.errors import UsageError


def trust(
    files: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[FILE]…", help="By default launch.toml, and the jobs in jobs/.", show_default=False
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Trust them without asking.")] = False,
    revoke: Annotated[
        bool,
        typer.Option("--revoke", help="Trust them no more; without a FILE, no file of this folder or below."),
    ] = False,
) -> None:
    """Show which values of this folder's files need your yes, and trust them.

    A host's address, keys, root, programs and variables, and a job's secrets and on_end, count only once you trust them. A
    change of one asks again; a change of anything else does not.

    Examples:
        launch trust
        launch trust train.toml --yes
        launch trust --revoke
    """
    from launcher.cli.asking import agrees
    from launcher.runs import trust as trusted

    if revoke:
        forgotten = [file for place in files or [Path()] for file in trusted.revoke(place)]
        complain(
            "\n".join([f"trusted no more: {file}" for file in forgotten] or ["nothing here was trusted"])
        )
        return
    shown = 0
    for file in files or _usual():
        values = _values(file)
        if not values:
            continue
        shown += 1
        complain("\n".join(trusted.describe(file, values)))
        if trusted.is_trusted(file, values):
            complain("  trusted already")
            continue
        answer = True if yes else agrees("trust these values?")
        if answer is None:
            raise UsageError("there is no terminal to ask at\n  next   launch trust --yes")
        if not answer:
            complain("nothing was trusted")
            raise typer.Exit(1)
        trusted.trust(file, values)
        complain("  trusted")
    if not shown:
        complain("no value here needs trust")


def _usual() -> list[Path]:
    return [path for path in (Path("launch.toml"), *sorted(Path("jobs").glob("*.toml"))) if path.is_file()]


def _values(file: Path) -> dict[str, object]:
    """Return what of a file needs trust. Raises BadFileError."""
    from launcher.runs import trust as trusted
    from launcher.runs.lookup import PROJECT_FILE, Lookup
    from launcher.values.toml import read_toml

    if file == PROJECT_FILE:
        return dict(Lookup().project_values)
    return trusted.job_values(read_toml(file)[0])
