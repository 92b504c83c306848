"""verify: try every precision of a job on a card for a few steps, and store the results for later plans."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Annotated

import typer

from launcher.cli.options import (
    WHAT,
    CardOption,
    EnvFileOption,
    GpusOption,
    HostOption,
    JobOption,
    JsonFlag,
    SecretOption,
    SetOption,
    SureFlag,
    WaitOption,
    seconds,
)
from launcher.cli.signals import Terminated
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.copy.request import Request
    from launcher.runs.follow.view import View
    from launcher.runs.launch.launching import Started
    from launcher.verify.verifying import Verified


def verify(
    ctx: typer.Context,
    stray: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
    host: HostOption = None,
    profile: CardOption = None,
    job: JobOption = None,
    rehearse: Annotated[
        bool,
        typer.Option(
            "--rehearse",
            help="Try the card's precisions on a CPU: dtypes, scaler and gradients, not speed.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    adapt: Annotated[
        bool,
        typer.Option(
            "--adapt",
            help="Apply the plan's precision to a script that does not use launcher.",
            rich_help_panel=WHAT,
        ),
    ] = False,
    settings: SetOption = None,
    env_files: EnvFileOption = None,
    secrets: SecretOption = None,
    gpus: GpusOption = None,
    wait: WaitOption = None,
    sure: SureFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Try a job in every precision of its ladder for a few steps on the card, and show which work and how fast.

    First the card: does this torch have code for it, and how fast is a matrix product forward and backward in each dtype?
    Then each rung, in a separate process: does the loss stay finite, do the weights move, is the scaler healthy, are the
    dtypes as planned, does the gradient match that of fp32, how much memory and how many tokens per second? Last, on a
    card, the largest micro-batch that fits. Only the figures are kept, for later plans on that host.

    The exit code is 0 if the first rung works.

    Examples:
        launch verify --host lab --profile titan_rtx --job sft
        launch verify --rehearse --profile p100 --job sft
        launch verify --host lab --adapt -- python train.py
    """
    if stray:
        given = " ".join(stray)
        raise UsageError(
            f"unexpected words: {given}\n  a job        launch verify --job JOB\n  a command    launch verify --adapt -- {given}"
        )
    from launcher.cli.text.verification_text import make_view, report_json, show_report
    from launcher.copy.request import Request

    request = Request(
        host=host,
        profile=profile,
        job=job,
        settings=[*(settings or ()), *(["adapt=true"] if adapt else [])],
        words=ctx.obj or [],
        secrets=secrets or (),
        env_files=env_files or (),
        rehearses=rehearse,
        gpus=gpus,
        wait_s=seconds(wait),
        is_sure=sure,
        verifies=True,
    )
    found = _verify(request, make_view())
    if as_json:
        from launcher.cli.output.answer import answer

        answer(report_json(found.report, found.problem))
    else:
        show_report(found.report)
    if found.problem is not None:
        from launcher.cli.output.say import complain

        complain(found.problem)
    if not found.report.works or found.problem is not None:
        raise typer.Exit(1)


def _verify(request: Request, view: View) -> Verified:
    """Start a verification and follow it to its end. An interrupt removes its run from the host."""
    from launcher.runs.launch.launching import launch
    from launcher.verify.verifying import finish, remove

    try:
        started: Started = launch(request, view)
    except (KeyboardInterrupt, Terminated) as error:
        view.note("interrupted before the first trial; nothing is left on the host")
        raise typer.Exit(_code_of(error)) from None
    number = started.interrupts.release()
    if number is not None:
        started.client.close()
        if problem := remove(started.host, started.local_copy, view):
            view.note(problem)
        raise typer.Exit(Terminated.exit_code if number == signal.SIGTERM else 130)
    try:
        return finish(started, view)
    except (KeyboardInterrupt, Terminated) as error:
        raise typer.Exit(_code_of(error)) from None


def _code_of(error: BaseException) -> int:
    return Terminated.exit_code if isinstance(error, Terminated) else 130
