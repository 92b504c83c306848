"""resume: start a new run from the last checkpoint of an ended one."""

from __future__ import annotations

from typing import Annotated

import typer

from launcher.cli.options import (
    CardOption,
    DetachFlag,
    EnvFileOption,
    HostOption,
    JsonFlag,
    NameOption,
    QuietFlag,
    RunWord,
    SendSecretsFlag,
    WaitOption,
    seconds,
)


def resume(
    run: RunWord,
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND]",
            help="For a script that saves its own checkpoints: its command, with its own option to load one.",
            show_default=False,
        ),
    ] = None,
    host: HostOption = None,
    profile: CardOption = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change steps, save_every_steps, settings.NAME, variables.NAME, batch.micro, attempts, …; not code, data or model.",
        ),
    ] = None,
    env_files: EnvFileOption = None,
    name: NameOption = None,
    wait: WaitOption = None,
    detach: DetachFlag = False,
    sure: SendSecretsFlag = False,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Continue an ended run from its last checkpoint, as a new run.

    The new run is on the same host and starts from the newest complete checkpoint. It uses the code, data, model and
    precisions that are already on the host; nothing is sent. Its curves continue those of the ended run. For a run that was
    interrupted, use launch attach.

    If --host is an account that rents machines, one is rented for the new run, with the same card if one is offered;
    --profile names another. Checkpoint, code and data are sent to it.

    A script that does not use launcher's worker continues with the files that it wrote. Its own Trainer of transformers
    gets the last checkpoint; any other script needs a command with its own option.

    Examples:
        launch resume w8q2 --set steps=600
        launch resume w8q2 -- python train.py --resume out/checkpoint-20
        launch resume last
        launch resume w8q2 --host lambda --set steps=600
    """
    from launcher.cli.follow.screens import make_view
    from launcher.cli.follow.starting import start_and_follow
    from launcher.runs.resume.resumed_plan import ResumeRequest
    from launcher.runs.resume.resuming import resume as start

    view = make_view(as_json, is_quiet=quiet)
    request = ResumeRequest(
        settings or (), name, seconds(wait), env_files or (), sure, profile, command or ()
    )
    start_and_follow(
        lambda: start(run, host, request, view),
        view,
        detach=detach,
    )
