"""pull: download the files that a run wrote."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag, RunWord

if TYPE_CHECKING:
    from launcher.cli.json_output.file_shapes import PulledFiles
    from launcher.copy.local_copy import LocalCopy
    from launcher.runs.follow.view import View
    from launcher.runs.pull.checkpoint_pulling import LocalCheckpoint
    from launcher.runs.pull.pulling import Pulled

PathWords = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PATH]…", help="Files or folders of the run, as `launch ls` shows them."),
]


def pull(
    run: RunWord = "last",
    paths: PathWords = None,
    host: HostOption = None,
    everything: Annotated[
        bool, typer.Option("--all", help="All files: without a size limit, and with checkpoints.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Download new files until the run ends.")] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option("--checkpoint", metavar="WHICH", help="One sealed checkpoint: best, last or its step."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Download the files that a run wrote, and verify each. An interrupted pull continues where it stopped.

    Without PATH: artifacts and outputs, the smallest first, up to the job's pull_limit; no checkpoints.

    Examples:
        launch pull last
        launch pull w8q2 --checkpoint best
        launch pull w8q2 --all
    """
    from launcher.cli.follow.screens import make_view
    from launcher.errors import MachineGoneError, RunError, UsageError
    from launcher.runs.follow.following import what_failed, what_stayed
    from launcher.runs.locating import locate
    from launcher.runs.pull.copying import are_here
    from launcher.runs.pull.fetching import pull_once, pull_one_checkpoint, pull_until_end
    from launcher.runs.pull.pulling import Choice, Pulled
    from launcher.runs.rented.machine_gone import gone

    place, local_copy = locate(run, host)
    local_copy.check_not_freed()
    view = make_view(as_json)
    if (words := gone(local_copy)) is not None:
        if checkpoint is not None or not are_here(local_copy, paths or ()):
            raise MachineGoneError(place.name, words)
        view.note(f"{words.splitlines()[0]}; the downloaded files are in {local_copy.folder}")
        if as_json:
            from launcher.cli.output.answer import answer

            answer(_shape(Pulled([], 0, [], [], {}, []), local_copy))
        return
    if checkpoint is not None:
        if paths or everything or follow:
            raise UsageError(
                "pull: --checkpoint allows neither PATH nor --all nor --follow\n  next   launch pull RUN --checkpoint last"
            )
        _one_checkpoint(
            pull_one_checkpoint(place, local_copy, checkpoint, view), local_copy, view, as_json=as_json
        )
        return
    choice = Choice(local_copy.record.plan().pull_limit, tuple(paths or ()), everything)
    pulled = (pull_until_end if follow else pull_once)(place, local_copy, choice, view)
    if as_json:
        from launcher.cli.output.answer import answer

        answer(_shape(pulled, local_copy))
    else:
        view.came_home(local_copy.run, {local_copy.place(file.path): file.size for file in pulled.fetched})
        for text in what_stayed(pulled, place.name, local_copy):
            view.note(text)
    if problem := what_failed(pulled, place.name, local_copy):
        raise RunError(problem)


def _one_checkpoint(home: LocalCheckpoint, local_copy: LocalCopy, view: View, *, as_json: bool) -> None:
    from launcher.runs.pull.pulling import Pulled

    if as_json:
        from launcher.cli.output.answer import answer

        answer(_shape(Pulled(home.fetched, home.present, [], [], {}, home.yours), local_copy))
        return
    from launcher.cli.follow.ending import shown_path
    from launcher.cli.output.say import say

    for moved in home.yours:
        view.note(f"{moved.relative_to(local_copy.folder)} is the file that you had changed here")
    say(f"{shown_path(home.folder)}   step {home.checkpoint.step}")


def _shape(pulled: Pulled, local_copy: LocalCopy) -> PulledFiles:
    from launcher.cli.json_output.file_shapes import PulledFile, PulledFiles
    from launcher.runs.follow.following import checkpoints_left

    return PulledFiles(
        run=local_copy.run,
        files=[
            PulledFile(
                path=file.path, size=file.size, sha256=file.sha256, here=str(local_copy.place(file.path))
            )
            for file in pulled.fetched
        ],
        present=pulled.present,
        over_limit=pulled.over_limit,
        checkpoints=checkpoints_left(pulled, local_copy),
        left_out=pulled.left_out,
        yours=[str(path) for path in pulled.yours],
    )
