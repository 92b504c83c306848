"""rerun: repeat a run's launch as a new run."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import (
    CardOption,
    DetachFlag,
    EnvFileOption,
    JsonFlag,
    NameOption,
    QuietFlag,
    RunWord,
    SetOption,
    SureFlag,
    WaitOption,
    seconds,
)


def rerun(
    run: RunWord = "last",
    host: Annotated[
        str | None,
        typer.Option("--host", metavar="HOST", help="Run on this host instead of the previous one."),
    ] = None,
    profile: CardOption = None,
    settings: SetOption = None,
    env_files: EnvFileOption = None,
    name: NameOption = None,
    wait: WaitOption = None,
    detach: DetachFlag = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and the findings of its checks; send nothing.")
    ] = False,
    sure: SureFlag = False,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Launch a run's job again, as a new run from step 0.

    The job, the options and the command are the same; the code is the current content of the folder. Other differences of
    the new plan are printed. To continue from a checkpoint, use launch resume.

    Examples:
        launch rerun last
        launch rerun w8q2 --set seed=2
        launch rerun w8q2 --host lab
        launch rerun w8q2 --host lambda --dry-run
    """
    from launcher.runs.locating import locate
    from launcher.runs.rerunning import Changes, preview_rerun
    from launcher.runs.rerunning import rerun as start

    _, parent = locate(run, None)
    changes = Changes(host, profile, tuple(settings or ()), name, tuple(env_files or ()), seconds(wait), sure)
    if dry_run:
        from launcher.cli.text.preview_text import show_preview

        show_preview(preview_rerun(parent, changes), as_json=as_json)
        return
    from launcher.cli.follow.screens import make_view
    from launcher.cli.follow.starting import start_and_follow

    view = make_view(as_json, is_quiet=quiet)
    start_and_follow(lambda: start(parent, changes, view), view, detach=detach)
