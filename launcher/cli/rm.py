"""rm: remove runs that have ended."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import AcceptFlag, HostOption


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", help="The start of a run's id, or of its last letters; or `last`."),
    ],
    host: HostOption = None,
    _accept: AcceptFlag = False,
    force: Annotated[bool, typer.Option("--force", help="Even artifacts that were never pulled.")] = False,
) -> None:
    """Remove runs that have ended, on their host and here. What they shared with others goes by `launch gc`.

    Examples:  launch rm w8q2     launch rm --force p0x1 a77c
    """
    from launcher.cli.say import complain, say
    from launcher.hosts import connect
    from launcher.runs.cleaning import remove
    from launcher.runs.control import locate

    for place, mirror in [locate(word, host) for word in runs]:  # all are known before the first one goes
        with connect(place) as agent:
            left = remove(agent, mirror, even_artifacts=force)
        say(f"{mirror.run} removed from {place.name} and from here")
        if left is not None:
            complain(left)
