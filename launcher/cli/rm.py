"""rm: remove runs that have ended."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import AcceptFlag, HostOption


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", help="Runs: an id, the start of it or of its last part; or `last`."),
    ],
    host: HostOption = None,
    _accept: AcceptFlag = False,
    force: Annotated[
        bool, typer.Option("--force", help="Remove artifacts that were never pulled too.")
    ] = False,
) -> None:
    """Remove ended runs from their host and from here. Files shared with other runs are removed by `launch gc`.

    Examples:  launch rm w8q2     launch rm --force p0x1 a77c
    """
    from launcher.cli.say import complain, say
    from launcher.hosts import connect
    from launcher.runs.cleaning import remove
    from launcher.runs.control import locate

    for place, mirror in [
        locate(word, host) for word in runs
    ]:  # every name is resolved before the first removal
        with connect(place) as desk:
            left = remove(desk, mirror, even_artifacts=force)
        say(f"{mirror.run} removed from {place.name} and from here")
        if left is not None:
            complain(left)
