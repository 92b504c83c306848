"""batch: start many launches with one command, and show, resume, stop or remove them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from signal import raise_signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from launcher.cli import help_text
from launcher.cli.options import WHERE, CardOption, JobOption, JsonFlag, SecretOption, SetOption, SureFlag
from launcher.cli.output.say import complain, say
from launcher.cli.quick import LocalCommand, QuickCommand, QuickGroup, TrailingCommand
from launcher.errors import UsageError

if TYPE_CHECKING:
    from launcher.batch.batch_queue import BatchQueue
    from launcher.batch.input.batch_file import Batch

BEGIN = "begin"


class BatchGroup(QuickGroup):
    """A group that inserts the command `begin` if the first word is a file or an option."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line: a command, or the arguments of `begin`."""
        return ["VERB …", "|", *self.commands[BEGIN].collect_usage_pieces(ctx)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, then the options of `begin`."""
        self.format_commands(ctx, formatter)
        help_text.write_options(formatter, ctx, self.commands[BEGIN].get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Insert `begin` before a first word that is no command."""
        if args and args[0] not in self.commands and args[0] not in ("--help", "-h"):
            if args[0].isidentifier():
                self._refuse_word(args[0])
            args = [BEGIN, *args]
        return super().parse_args(ctx, args)

    def _refuse_word(self, word: str) -> None:
        """Raise UsageError for a word that is neither a command nor a file, such as `stauts` or a batch's name."""
        if Path(word).exists():
            return
        from launcher.batch.batch_queue import names
        from launcher.values.parsing import nearest

        if word in names():
            raise UsageError(f"batch {word}: which verb?\n  its progress   launch batch status {word}")
        raise UsageError(
            f"batch {word}: neither a verb nor a file{nearest(word, [*self.commands])}\n  see   launch batch --help"
        )


app = typer.Typer(
    help="Many launches in one command: from a file, or a grid of values.",
    no_args_is_help=True,
    cls=BatchGroup,
    rich_markup_mode=None,
)

NameWord = Annotated[
    str | None, typer.Argument(metavar="NAME", help="The batch; by default the latest.", show_default=False)
]

ParallelOption = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="At most this many runs at a time, on all hosts together."),
]

FailuresOption = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Start nothing more after this many failures.")
]

CostOption = Annotated[
    float | None,
    typer.Option(metavar="DOLLARS", help="The most that rented machines may cost, for all items together."),
]

DetachFlag = Annotated[
    bool,
    typer.Option(
        "--detach", help="Run the batch in a background process, print how to look at it, and exit."
    ),
]

LatestFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask to confirm the latest batch.")]


@app.callback()
def _batches() -> None:
    pass


@app.command(BEGIN, cls=TrailingCommand)
def begin(
    ctx: typer.Context,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE.toml", help="The batch file.", show_default=False)
    ] = None,
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=V1,V2", help="Run each combination of these values; may be repeated."),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            metavar="HOST[,HOST…]",
            help="The hosts of the runs: each run goes to the first that is free.",
            rich_help_panel=WHERE,
        ),
    ] = None,
    profile: CardOption = None,
    job: JobOption = None,
    settings: SetOption = None,
    secrets: SecretOption = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Name the batch; by default its file's name.")
    ] = None,
    max_parallel: ParallelOption = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Start nothing more after a run has failed.")
    ] = False,
    max_failures: FailuresOption = None,
    max_cost: CostOption = None,
    best: Annotated[
        str | None,
        typer.Option(
            metavar="METRIC:min|max", help="Name the best run by this metric, for example loss:min."
        ),
    ] = None,
    artifacts: Annotated[
        str | None,
        typer.Option(metavar="all|best|none", help="The runs whose files are downloaded; by default all."),
    ] = None,
    sure: SureFlag = False,
    detach: DetachFlag = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Print each item with its plan and the findings of its checks; start nothing."
        ),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Run all items of a file, or of a grid, on the hosts that have room. `begin` may be left out.

    Examples:
        launch batch sweep.toml                    or, with the verb,   launch batch begin sweep.toml
        launch batch --grid settings.learning_rate=1e-4,3e-4 --grid seed=1,2 --host lab,l40s
        launch batch --grid lr=1e-4,3e-4 --host lab -- python train.py --lr {lr}
    """
    if ctx.obj is not None and not ctx.obj:
        raise UsageError(
            "a command must follow --\n  example   launch batch --grid lr=1e-4,3e-4 -- python train.py --lr {lr}"
        )
    if fail_fast and max_failures is not None:
        raise UsageError("--fail-fast is --max-failures 1: give one of them")
    from launcher.config.resolve import changed_values

    changes = _without_none(
        name=name,
        profile=profile,
        host=host.split(",") if host else None,
        max_parallel=max_parallel,
        max_failures=1 if fail_fast else max_failures,
        max_cost=max_cost,
        best=best,
        artifacts=artifacts,
    )
    only_grid = _without_none(
        job=job,
        command=ctx.obj or None,
        settings=changed_values(settings or ()) or None,
        secrets=[*secrets] if secrets else None,
    )
    batch = _batch(file, grid or [], changes, only_grid)
    for note in batch.notes:
        complain(f"note: {note}")
    if dry_run:
        from launcher.cli.commands.batch.batch_preview import show_preview

        show_preview(batch, is_sure=sure, as_json=as_json)
        return
    from launcher.base.delayed_interrupts import HeldInterrupts
    from launcher.batch.batch_queue import NewItem, make_queue
    from launcher.cli.commands.batch.batch_work import leaving

    _agree(batch, is_sure=sure)
    entries = (NewItem(draft.name, draft.as_json, draft.hosts, dict(draft.values)) for draft in batch.drafts)
    held = HeldInterrupts()  # delay a Ctrl-C until the queue exists, so that its message can name the batch
    try:
        queue = make_queue(batch.name, batch.rules, entries)
    except BaseException:
        held.release()
        raise
    with queue, leaving(queue):
        if (came := held.release()) is not None:
            raise_signal(came)
        _work(queue, detach=detach, as_json=as_json)


def _without_none(**values: Any) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}


def _batch(file: Path | None, grid: list[str], changes: dict[str, Any], only_grid: dict[str, Any]) -> Batch:
    from launcher.batch.input.batch_file import grid_batch, read_batch
    from launcher.cli.follow.screens import make_stage

    if file is not None and grid:
        raise UsageError(f"{file} and --grid: give one of them; a file has its grid in [matrix]")
    if file is None and not grid:
        raise UsageError(
            "name a file or a grid\n  from a file   launch batch FILE.toml\n"
            "  a grid        launch batch --grid settings.learning_rate=1e-4,3e-4 --host HOST"
        )
    if file is None:
        with make_stage("items") as stage:
            return grid_batch(grid, {**changes, **only_grid}, stage.progress)
    if only_grid:
        raise UsageError(
            f"{file}: set the job, its command, settings and secrets in the file\n  or give --grid in place of the file"
        )
    with make_stage("items") as stage:
        return read_batch(file, changes, stage.progress)


def _agree(batch: Batch, *, is_sure: bool) -> None:
    """Ask for consent to a batch's cost and large uploads. Raises RefusedError if the user declines, or without a terminal."""
    _agree_to_spend(
        [draft.hosts for draft in batch.drafts], batch.rules.max_cost, "launch batch --yes …", is_sure=is_sure
    )
    for one in () if is_sure else batch.large:
        _ask(one.finding.message, one.finding.mend or "")


def _agree_to_spend(
    items: Sequence[Sequence[str]], max_cost: float | None, command: str, *, is_sure: bool
) -> None:
    """Ask for consent to rent machines for items on these hosts, up to `max_cost` dollars.

    `command` is the command that consents without a question. Raises RefusedError if the user declines, or
    without a terminal. Raises UsageError if machines would be rented without a limit.
    """
    from launcher.batch.batch_budget import spending
    from launcher.cli.output.asking import agrees

    cost = spending(items, max_cost, command)
    if cost is not None and not is_sure:
        cost.confirm(agrees, "nothing was begun")


def _agree_to_take_over(queue: BatchQueue, *, is_sure: bool) -> None:
    """Ask for consent to run a batch that this user did not begin. Raises RefusedError if the user declines, or without a terminal."""
    items = queue.items()
    hosts = sorted({host for item in items for host in item.hosts})
    if not is_sure:
        _ask(
            f"batch {queue.name} is foreign: you did not begin it; its {len(items)} items would run on {', '.join(hosts)}",
            f"its items   launch batch status {queue.name}     take it over   launch batch resume {queue.name} --yes",
        )


def _ask(question: str, mend: str) -> None:
    from launcher.cli.output.asking import agrees
    from launcher.errors import RefusedError

    answer = agrees(question)
    if answer is None:
        raise RefusedError(f"nothing was begun: {question}\n  {mend}")
    if not answer:
        raise RefusedError("nothing was begun: you answered no")


def _work(queue: BatchQueue, *, detach: bool, as_json: bool) -> None:
    """Run a batch here or, with `detach`, in a background process. If another process runs it, follow that process."""
    from launcher.cli.commands.batch.batch_work import leaving, work, work_detached

    if detach:
        work_detached(queue, as_json=as_json)
        return
    with leaving(queue):
        code = work(queue, as_json=as_json)
    raise typer.Exit(code)


@app.command("status", cls=LocalCommand)
def status(
    name: NameWord = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the state of each item of a batch, as known to this client. No host is asked.

    Examples:
        launch batch status
        launch batch status sweep --json
    """
    from launcher.batch.batch_queue import open_queue
    from launcher.cli.commands.batch.batch_table import print_status

    with open_queue(name, only_looks=True) as queue:
        print_status(queue, as_json=as_json)


@app.command("resume", cls=QuickCommand)
def resume(
    name: NameWord = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Rerun the failed, stopped, refused and dropped items.")
    ] = False,
    new_code: Annotated[
        bool, typer.Option("--new-code", help="Use the current code for all items that start from now on.")
    ] = False,
    max_parallel: ParallelOption = None,
    max_failures: FailuresOption = None,
    max_cost: CostOption = None,
    sure: SureFlag = False,
    detach: DetachFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Continue a batch that no process runs, or follow the process that runs it. Ended items are not run again.

    --max-parallel, --max-failures and --max-cost replace the batch's values from now on.

    Examples:
        launch batch resume
        launch batch resume sweep --failed
        launch batch resume sweep --failed --max-failures 5
        launch batch resume sweep --json
    """
    from launcher.batch import batch_index
    from launcher.batch.batch_queue import BatchRequest, open_queue, take_work, worker_of, worker_words
    from launcher.batch.batch_worker import queue_again
    from launcher.cli.commands.batch.batch_table import tell_mended
    from launcher.upload.frozen_code import forget

    changes = _without_none(max_parallel=max_parallel, max_failures=max_failures, max_cost=max_cost)
    with open_queue(name, may_be_foreign=True) as queue:
        queue.check_folder()
        if not batch_index.has(queue):
            _agree_to_take_over(queue, is_sure=sure)
        batch_index.enter(queue)
        rules = queue.rules_with(changes)
        if max_cost is not None:
            hosts = [item.hosts for item in queue.items()]
            agrees = f"launch batch resume {queue.name} --yes …"
            _agree_to_spend(hosts, rules.max_cost, agrees, is_sure=sure)
        if (held := take_work(queue)) is not None:
            try:
                tell_mended(queue, held)
                queue.take_back(BatchRequest.STOP)
                if changes:
                    before = queue.identity()
                    queue.change_rules(rules)
                    batch_index.enter(queue)
                    batch_index.forget(before, queue.folder)
                if new_code:
                    forget(queue.folder)
                if failed:
                    again = len(queue_again(queue))
                    complain(f"{again} {'item is' if again == 1 else 'items are'} queued again")
            finally:
                held.release()
        elif new_code or changes:
            what = " and ".join(["the code"] * new_code + ["the limits"] * bool(changes))
            worker = worker_of(queue)
            pid = "PID" if worker is None else worker.pid
            raise UsageError(
                f"{queue.name}: {worker_words(queue)} runs it, and keeps {what} with which it began\n"
                f"  first   Ctrl-C in that command, or   kill {pid}   if it is in the background; running items continue"
            )
        elif failed:
            queue.wish(BatchRequest.AGAIN)
            complain("failed items are queued again by the process that runs the batch")
        _work(queue, detach=detach, as_json=as_json)


@app.command("stop", cls=QuickCommand)
def stop(
    name: NameWord = None,
    now: Annotated[bool, typer.Option("--now", help="End the runs without a checkpoint.")] = False,
    yes: LatestFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Drop the queued items, then stop the runs. Runs that could not be reached are named.

    Examples:
        launch batch stop sweep
    """
    from launcher.batch.batch_queue import open_queue
    from launcher.batch.batch_stop import stop_batch
    from launcher.cli.commands.batch.batch_table import print_stopped
    from launcher.cli.follow.screens import make_stage

    with open_queue(name) as queue:
        _check_latest(name, queue.name, "stop", yes=yes)
        with make_stage("stop") as stage:
            stopped = stop_batch(queue, now=now, tell=stage.progress)
        raise typer.Exit(print_stopped(queue, stopped, as_json=as_json))


@app.command("rm", cls=LocalCommand)
def rm(
    name: NameWord = None,
    yes: LatestFlag = False,
    as_json: JsonFlag = False,
) -> None:
    """Remove a batch from the list. Its runs, results.csv and curves.png stay; its queue and batch.log do not.

    The batch's copy of the code is removed too. A run that has not succeeded keeps its copy: it may continue elsewhere.

    Examples:
        launch batch rm sweep
    """
    from launcher.batch.batch_queue import open_queue
    from launcher.batch.batch_removal import remove_batch
    from launcher.cli.commands.batch.batch_table import left_rentals
    from launcher.cli.follow.ending import shown_path

    with open_queue(name) as queue:
        _check_latest(name, queue.name, "rm", yes=yes)
        still = left_rentals(queue)
        removed = remove_batch(queue)
    for line in still:
        complain(line)
    if as_json:
        from launcher.cli.json_output.run_shapes import BatchRemoved
        from launcher.cli.output.answer import answer

        answer(
            BatchRemoved(
                name=queue.name,
                runs=removed.runs,
                with_code=removed.with_code,
                kept=[str(path) for path in removed.kept],
            )
        )
        return
    say(f"{queue.name} is removed")
    if removed.runs:
        say(f"  its {'run stays' if removed.runs == 1 else f'{removed.runs} runs stay'}   launch ps")
    if removed.with_code:
        say(
            f"  {removed.with_code} of them did not succeed, and keep their code, so that they can continue on another host"
        )
    for path in removed.kept:
        say(f"  kept   {shown_path(path)}")


@app.command("list", cls=LocalCommand)
def list_batches(as_json: JsonFlag = False) -> None:
    """List the batches, the latest first, with the states of their items. No host is asked.

    Examples:
        launch batch list
    """
    from launcher.cli.commands.batch.batch_table import print_list

    print_list(as_json=as_json)


def _check_latest(name: str | None, latest: str, verb: str, *, yes: bool) -> None:
    """Ask the user to confirm the latest batch, unless a batch is named or `yes` is set.

    Raises UsageError without a terminal, and Exit with code 1 if the user declines.
    """
    if name is not None or yes:
        return
    from launcher.cli.output.asking import check_meant

    found = f"the latest batch is {latest}"
    check_meant(found, found, f"launch batch {verb} {latest}", verb)
