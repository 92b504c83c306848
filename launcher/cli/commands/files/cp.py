"""cp: copy a file or folder of a run to this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag
from launcher.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def cp(
    source: Annotated[
        str,
        typer.Argument(
            metavar="RUN:PATH",
            help="A file or folder of a run, relative to its working folder; see `launch ls`.",
        ),
    ],
    destination: Annotated[str, typer.Argument(metavar="DEST", help="A file or folder on this machine.")],
    host: HostOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that exist, without asking.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Copy a file or folder of a run to this machine, and verify it.

    Examples:
        launch cp w8q2:out/model.pt .
        launch cp last:checkpoints/step-400 /data/kept/
    """
    from launcher.base.text import files_text
    from launcher.cli.follow.screens import make_stage
    from launcher.cli.output.asking import agrees
    from launcher.cli.output.figures import size_text
    from launcher.cli.output.say import say
    from launcher.errors import MachineGoneError, RunError
    from launcher.runs.locating import locate
    from launcher.runs.pull.copying import copy, copy_from_here
    from launcher.runs.rented.machine_gone import gone
    from launcher.runs.run_client import open_client

    run, colon, path = source.partition(":")
    if not run or not colon or not path:
        raise UsageError(f"{source}: expected RUN:PATH\n  example   launch cp last:out/model.pt .")
    place, local_copy = locate(run, host)
    local_copy.check_not_freed()

    def may_replace(existing: Sequence[Path]) -> bool:
        names = "\n".join(f"  {path}" for path in existing[:5])
        verb = "exists" if len(existing) == 1 else "exist"
        return force or agrees(f"{files_text(len(existing))} {verb} and would be replaced:\n{names}") is True

    if (words := gone(local_copy)) is not None:
        try:
            copied = copy_from_here(local_copy, path, destination, may_replace)
        except RunError as error:
            raise MachineGoneError(place.name, words) from error
    else:
        with open_client(place, local_copy) as client:
            copied = copy(client, local_copy, path, destination, may_replace, lambda: make_stage("cp"))
    if as_json:
        from launcher.cli.json_output.file_shapes import CopiedFiles
        from launcher.cli.output.answer import answer

        counted = {"files": copied.files, "bytes": copied.bytes}
        answer(CopiedFiles(run=local_copy.run, path=path, **counted, here=str(copied.place.absolute())))
    else:
        say(f"{files_text(copied.files)}, {size_text(copied.bytes)}   {copied.place}")
