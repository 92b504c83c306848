"""launch: run a job on a host and follow it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher.cli.options import (
    WHAT,
    WHERE,
    CardOption,
    DetachFlag,
    EnvFileOption,
    GpusOption,
    HostOption,
    JobOption,
    JsonFlag,
    NameOption,
    PrecisionOption,
    QuietFlag,
    SecretOption,
    SetOption,
    SureFlag,
    WaitOption,
    seconds,
)
from launcher.errors import UsageError

HELP = """Run a fine-tune on a GPU that you can reach, and download the adapter.

Without a verb, launch a job:

\b
launch                                    the demo, on this machine
launch --host lab --profile titan_rtx     on a host, for its TITAN RTX
launch --host lab -- python train.py      your own command, in this folder
launch --job sft --set model=org/name --set data.train=./my.jsonl
"""


def launch(
    ctx: typer.Context,
    stray: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    host: HostOption = None,
    profile: CardOption = None,
    job: JobOption = None,
    runtime: Annotated[
        str | None,
        typer.Option(
            metavar="RUNTIME",
            help="How the job runs on the host: auto, docker or native; a cluster has only auto.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    precision: PrecisionOption = "auto",
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse", help="Run on a CPU with the card's precision and batch split.", rich_help_panel=WHAT
        ),
    ] = False,
    adapt: Annotated[
        bool,
        typer.Option(
            "--adapt",
            help="Apply the plan's precision, resume and guard to a script that does not use launcher.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    settings: SetOption = None,
    packages: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="PACKAGE",
            help="Require this package for the job, for example peft==0.21.2.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    variables: Annotated[
        list[str] | None,
        typer.Option(
            "--env",
            "-e",
            metavar="NAME=VALUE",
            help="Set a variable of the job; it is recorded.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    env_files: EnvFileOption = None,
    secrets: SecretOption = None,
    outputs: Annotated[
        list[str] | None,
        typer.Option(
            "--output",
            metavar="GLOB",
            help="Download only the files of the working folder that match, as in a .gitignore.",
        ),
    ] = None,
    gpus: GpusOption = None,
    after: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN[:any]",
            help="On a Slurm cluster: start if this run succeeds; with :any, after its end.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    wait: WaitOption = None,
    name: NameOption = None,
    detach: DetachFlag = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the plan and the findings of its checks; send nothing.")
    ] = False,
    probe: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --dry-run: use this output of `launch probe --json` instead of asking the host.",
        ),
    ] = None,
    allow_substitute: Annotated[
        bool,
        typer.Option(
            "--allow-substitute",
            help="Plan for the cards that Kaggle offers instead of those that it has retired.",
            rich_help_panel=WHERE,
        ),
    ] = False,
    sure: SureFlag = False,
    quiet: QuietFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Launch the job of --job, else the command after --, else the project's job, else the sft demo.

    The word `run` may be left out.

    Examples:
        launch run
        launch run --host lab --profile titan_rtx
        launch run --host lab -- python train.py
    """
    words: list[str] = ctx.obj or []
    if stray:
        from launcher.cli.command_suggestions import tip_for_stray

        raise UsageError(tip_for_stray(stray))
    if probe and not dry_run:
        raise UsageError(
            "--probe needs --dry-run: a launch probes its host itself\n  next   launch --dry-run --probe FILE"
        )
    from launcher.copy.request import Request

    request = Request(
        host,
        profile,
        job,
        runtime,
        precision,
        [*(settings or ()), *(["adapt=true"] if adapt else [])],
        name,
        words,
        secrets or (),
        packages or (),
        variables or (),
        env_files or (),
        rehearse,
        gpus,
        seconds(wait),
        outputs or (),
        sure,
        allows_substitute=allow_substitute,
        after=after or (),
    )
    if dry_run:
        from launcher.cli.text.preview_text import show_preview
        from launcher.runs.host_probes import saved_probe
        from launcher.runs.launch.dry_run import preview

        show_preview(preview(request, saved_probe(probe) if probe else None), as_json=as_json)
        return
    from launcher.cli.follow.screens import make_view
    from launcher.cli.follow.starting import start_and_follow
    from launcher.runs.launch.launching import launch as start

    view = make_view(as_json, is_quiet=quiet)
    start_and_follow(lambda: start(request, view), view, detach=detach)
