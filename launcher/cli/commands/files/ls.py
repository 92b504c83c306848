"""ls: list the files that a run wrote."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import HostOption, JsonFlag, RunWord


def ls(
    run: RunWord = "last",
    path: Annotated[
        str | None, typer.Argument(metavar="[PATH]", help="A file or folder of the run; by default all.")
    ] = None,
    host: HostOption = None,
    as_json: JsonFlag = False,
) -> None:
    """List the files that a run wrote, and which are here. Paths are relative to the run's working folder.

    Examples:
        launch ls last
        launch ls w8q2 checkpoints
    """
    from launcher.cli.follow.fetch import complain_not_asked, complain_unreached
    from launcher.cli.follow.screens import make_stage
    from launcher.runs.locating import locate_to_read
    from launcher.runs.pull.file_listing import list_files

    place, local_copy = locate_to_read(run, host)
    if place is None:
        complain_not_asked(local_copy)
    with make_stage(f"listing on {place.name if place else 'this machine'}") as stage:
        listing = list_files(place, local_copy, path, stage)
    if listing.unreached is not None:
        complain_unreached(listing.unreached, local_copy)
    if as_json:
        from launcher.cli.json_output.file_shapes import Files
        from launcher.cli.output.answer import answer

        answer(Files(run=local_copy.run, files=listing.rows, left_out=listing.left_out))
        return
    from launcher.base.text import files_text
    from launcher.cli.output.figures import size_text
    from launcher.cli.output.say import complain, say

    for name, why in sorted(listing.left_out.items())[:10]:
        complain(f"{place.name if place else local_copy.short} cannot read {name}: {why}")
    if not listing.rows:
        say(
            f"{local_copy.short} wrote no files"
            if listing.unreached is None
            else f"no files of {local_copy.short} are here"
        )
        return
    from launcher.cli.output.columns import Column, print_columns

    columns = (Column("SIZE", is_figure=True), Column("KIND"), Column("HERE"), Column("PATH", 20, wraps=True))
    print_columns(columns, [(size_text(row.size), row.kind, row.here, row.path) for row in listing.rows])
    total, absent = sum(row.size for row in listing.rows), [row for row in listing.rows if row.here != "yes"]
    words = f"{files_text(len(listing.rows))}, {size_text(total)}"
    if absent and not local_copy.is_freed:
        words += f"; {size_text(sum(row.size for row in absent))} not here   launch pull {local_copy.short} PATH|--all"
    say(words)
