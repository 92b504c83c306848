"""trust: accept the values of a project's files that need trust: hosts, secrets and on_end."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.output.say import complain
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
        typer.Option(
            "--revoke", help="Stop trusting them; without a FILE, every file in this folder or below."
        ),
    ] = False,
) -> None:
    """Show the values in this folder's files that need your consent, and trust them.

    A host's address, keys, root, programs and variables, and a job's secrets and on_end, take effect only once you trust
    them. If one of these values changes, you are asked again; other changes do not ask.

    Examples:
        launch trust
        launch trust train.toml --yes
        launch trust --revoke
    """
    from launcher.cli.output.asking import agrees
    from launcher.config import trust as trusted

    if revoke:
        forgotten = [file for place in files or [Path()] for file in trusted.revoke(place)]
        complain(
            "\n".join([f"no longer trusted: {file}" for file in forgotten] or ["nothing here was trusted"])
        )
        return
    found = {file: values for file in files or _usual() if (values := _values(file))}
    left = {file: values for file, values in found.items() if not trusted.is_trusted(file, values)}
    for file, values in found.items():
        complain("\n".join(trusted.describe(file, values)))
        if file not in left:
            complain("  trusted already")
    if not found:
        complain("no value here needs trust")
    if not left:
        return
    answer = True if yes else agrees("trust these values?")
    if answer is None:
        named = "".join(f" {shlex.quote(str(file))}" for file in files or ())
        raise UsageError(f"no terminal is available for the question\n  next   launch trust{named} --yes")
    if not answer:
        complain("nothing was trusted")
        raise typer.Exit(1)
    for file, values in left.items():
        trusted.trust(file, values)
        complain(f"trusted: {file}")


def _usual() -> list[Path]:
    return [path for path in (Path("launch.toml"), *sorted(Path("jobs").glob("*.toml"))) if path.is_file()]


def _values(file: Path) -> dict[str, object]:
    """Return the values of a file that need trust. Raises BadFileError."""
    from launcher.base.toml import read_toml
    from launcher.config import trust as trusted
    from launcher.config.lookup import PROJECT_FILE, Lookup

    lookup = Lookup()
    if file == PROJECT_FILE:
        return dict(lookup.project_values)
    return trusted.job_values(read_toml(file).tables, lookup.names)
