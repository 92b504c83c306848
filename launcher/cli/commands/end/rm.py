"""rm: remove runs that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag
from launcher.cli.output.asking import YesFlag, agrees, check_last
from launcher.errors import OtherRootError, UnreachableError

if TYPE_CHECKING:
    from launcher.copy.local_copy import LocalCopy
    from launcher.runs.cleaning import Freeing
    from launcher.values.host import Host


def rm(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN…", help="Runs: an id, the start of it or of its last part; or `last`."),
    ],
    host: HostOption = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also remove files that have no other copy.")
    ] = False,
    here: Annotated[
        bool, typer.Option("--here", help="Also remove the files and the record on this machine.")
    ] = False,
    yes: YesFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove ended runs from their host. Downloaded files and the record stay here.

    First, a run's files are compared with those here. Nothing is removed if its last copy would be lost. Files shared with
    other runs are removed by `launch gc`.

    Examples:
        launch rm w8q2
        launch rm --here w8q2
        launch rm --force p0x1 a77c
    """
    from launcher.runs.cleaning import check_here
    from launcher.runs.locating import locate

    found = [(word, *locate(word, host)) for word in runs]  # resolve every name before the first removal
    for word, _, local_copy in found:
        check_last(word, local_copy, "rm", yes=yes)
        if here:
            check_here(local_copy, force=force)
    for _, place, local_copy in found:
        _remove(place, local_copy, force=force, here=here, as_json=as_json)


def _remove(place: Host, local_copy: LocalCopy, *, force: bool, here: bool, as_json: bool) -> None:
    from launcher.cli.output.figures import size_text
    from launcher.cli.output.say import complain, say
    from launcher.rental.records import ends_with
    from launcher.runs.cleaning import remove_here
    from launcher.runs.pull.local_copies import LocalCopies
    from launcher.runs.rented.machine_gone import gone
    from launcher.runs.rented.rented_runs import still_rented

    subject = f"{local_copy.short} on {place.name}"
    freeing, silence = None, ""
    is_gone = gone(local_copy) is not None
    if is_gone:
        local_copy.mark_freed()  # the host's files are lost with the machine
    try:
        freeing = None if local_copy.is_freed else _free(place, local_copy, force=force)
    except (UnreachableError, OtherRootError) as error:
        if not (here and force):
            raise
        silence = str(error).splitlines()[0]
    if silence:
        what = f"nothing was removed there ({silence})"
    elif is_gone:
        what = "its rented machine is gone"
    elif freeing is None:
        what = "was freed before"
    elif freeing.bytes is None:
        what = f"{place.name} has no such run any more"
    else:
        what = f"{size_text(freeing.bytes)} freed there"
    count = len(LocalCopies(local_copy).files())
    rent = None if ends_with(local_copy.run) else still_rented(local_copy)
    if here:
        remove_here(local_copy, force=force)
    if as_json:
        from launcher.cli.json_output.end_shapes import RemovedRun
        from launcher.cli.output.answer import answer

        problem = silence or (freeing.problem if freeing is not None else None)
        freed = freeing.bytes if freeing is not None else None
        found = {"bytes": freed, "files": count, "here": here, "problem": problem}
        answer(RemovedRun(run=local_copy.run, host=place.name, **found))
    elif here:
        say(f"{subject}: {what}; its {_files(count)}record here removed")
    else:
        verb, them, loss = ("stay", "them", " --force") if count else ("stays", "it", "")
        mend = f"launch rm --here{loss} {local_copy.short} removes {them}"
        say(f"{subject}: {what}; its {_files(count)}record {verb} here ({mend})")
    if rent is not None and not as_json:
        say(f"  {rent}")
    if freeing is not None and freeing.problem is not None:
        complain(freeing.problem)


def _files(count: int) -> str:
    from launcher.base.text import files_text

    return f"{files_text(count)} and " if count else ""


def _free(place: Host, local_copy: LocalCopy, *, force: bool) -> Freeing:
    from launcher.cli.follow.screens import make_stage
    from launcher.errors import LastCopyError
    from launcher.runs.cleaning import free
    from launcher.runs.run_client import open_client

    with open_client(place, local_copy) as client, make_stage("comparing") as stage:
        try:
            return free(client, local_copy, "all" if force else "nothing", stage)
        except LastCopyError as error:
            if not error.only_checkpoints:
                raise
            problem = error
    if not agrees(f"{problem}\nonly checkpoints would be lost"):
        raise problem
    with open_client(place, local_copy) as client, make_stage("comparing") as stage:
        return free(client, local_copy, "checkpoints", stage)
