"""Run a batch from the command line: a live table, lines of changes in a pipe, or JSON; and the exit code."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import typer
from rich.live import Live
from rich.text import Text

from launcher.base import own_variables
from launcher.base.text import printable
from launcher.batch.batch_queue import BatchQueue, BatchRequest, take_work, worker_of
from launcher.batch.batch_status import rows_of, state_of, totals, values_text
from launcher.batch.batch_usage import HOUR_S, Usage, total
from launcher.batch.batch_worker import BatchOutcome, BatchWorker
from launcher.batch.item_view import ItemView
from launcher.batch.queued_item import REFUSED, Item, ItemState
from launcher.cli.commands.batch.batch_table import (
    print_batch,
    shape,
    spent,
    table,
    tell_mended,
    tell_status,
    who_works,
)
from launcher.cli.follow.ending import shown_path
from launcher.cli.output import streams
from launcher.cli.output.say import complain, say
from launcher.cli.signals import Terminated, cursor_back_on_stop
from launcher.errors import RunError

if TYPE_CHECKING:
    from launcher.batch.batch_results import Results

LOOK_S = 1.0
FEWEST_LINES = 3
WORKER_LOG = "worker.log"
STARTS_S = 30.0
_EXIT = {"succeeded": 0, REFUSED: 3}


class _LinesView:
    """Prints a line for each change, for a pipe."""

    def show(self, items: list[Item], live: Mapping[int, ItemView]) -> None:
        """Show nothing: a pipe gets only changes."""

    def __init__(self) -> None:
        """Start without a printed state."""
        self._said: dict[int, str] = {}

    def changed(self, item: Item) -> None:
        """Print an item's new state, unless it was already printed."""
        words = _words(item)
        if item.state != ItemState.RESERVED and self._said.get(item.number) != words:
            self._said[item.number] = words
            say(f"  {item.name}  {words}")

    def note(self, text: str) -> None:
        """Print a note on standard error."""
        complain(f"  · {text}")


class _JsonLinesView(_LinesView):
    """Prints a JSON object for each change."""

    def __init__(self, usage: Usage) -> None:
        super().__init__()
        self._usage = usage

    def changed(self, item: Item) -> None:
        """Print an item's current state."""
        from launcher.cli.output.answer import answer

        answer(shape(rows_of([item], used=self._usage.now([item.number]))[0]))


class _TableView(_LinesView):
    """Draws the table in place."""

    def __init__(self, live: Live, queue: BatchQueue) -> None:
        super().__init__()
        self._live, self._queue, self._usage = live, queue, Usage(queue)
        self._drawn = 0.0

    def show(self, items: list[Item], live: Mapping[int, ItemView]) -> None:
        """Draw the table. If not all items fit, active items come first."""
        if time.monotonic() - self._drawn < LOOK_S:
            return
        self._drawn = time.monotonic()
        console = self._live.console
        used = self._usage.now()
        rows = rows_of(_shown(items, live, max(FEWEST_LINES, console.height - 4)), live, used)
        lines = [
            *table(rows, console.width).lines,
            f"{self._queue.name}: {totals(state_of(one, live.get(one.number)) for one in items)}{spent(self._queue, used)}",
        ]
        self._live.update(
            Text("\n".join(map(printable, lines)), no_wrap=True, overflow="ellipsis"), refresh=True
        )

    def changed(self, item: Item) -> None:
        """Do nothing: the table shows the change."""

    def note(self, text: str) -> None:
        """Print a note above the table."""
        self._live.console.print(Text(printable(f"  · {text}")))


def _shown(items: Sequence[Item], live: Mapping[int, ItemView], room: int) -> list[Item]:
    """Return the items that fit, in their order. Active items are chosen first, then queued ones, then the last changed."""
    going = [item for item in items if item.number in live]
    queued = [item for item in items if item.number not in live and item.state == ItemState.QUEUED]
    rest = [item for item in items if item.number not in live and item.state != ItemState.QUEUED]
    chosen = [*going, *queued, *sorted(rest, key=lambda item: item.changed, reverse=True)][:room]
    return sorted(chosen, key=lambda item: item.number)


def work(queue: BatchQueue, *, as_json: bool) -> int:
    """Run a batch until it is done or Ctrl-C, and return the exit code. If another process runs it, follow that process.

    Raises RunError if the queue cannot be repaired.
    """
    held = take_work(queue)
    if held is None:
        return follow(queue, as_json=as_json)
    tell_mended(queue, held)
    try:
        with _view(queue, as_json=as_json) as view:
            worker = BatchWorker(queue, view)
            outcome = worker.run()
        results = None if outcome == BatchOutcome.LEFT else _write_results(queue)
    finally:
        queue.mark()
        held.release()
    items = tell_status(queue, complain, shows_rows=not as_json)
    if results is not None:
        _tell_results(queue, items, results, as_json=as_json)
    return (
        Terminated.exit_code
        if worker.left_by in (signal.SIGTERM, signal.SIGHUP)
        else exit_code(items, outcome)
    )


@contextlib.contextmanager
def leaving(queue: BatchQueue) -> Iterator[None]:
    """On a Ctrl-C while this process does not run the batch, print its state and the next commands.

    Exit with 130, or with 0 if another process runs the batch.
    """
    try:
        yield
    except KeyboardInterrupt:
        items = queue.items()
        complain(f"{queue.name}: {totals(map(state_of, items))}")
        for line in who_works(queue, items):
            complain(line)
        if worker_of(queue) is not None:
            raise typer.Exit(0) from None
        if not queue.runs():
            complain(f"  or remove it    launch batch stop {queue.name} && launch batch rm {queue.name}")
        raise typer.Exit(130) from None


def _write_results(queue: BatchQueue) -> Results:
    """Write the batch's results. A process that follows this one waits for them."""
    from launcher.batch.batch_results import write_results
    from launcher.cli.follow.screens import make_stage

    with make_stage("results"):
        return write_results(queue)


def _tell_results(queue: BatchQueue, items: Sequence[Item], results: Results, *, as_json: bool) -> None:
    """Print the batch's results and the paths of their files."""
    if as_json:
        from launcher.cli.json_output.run_shapes import BatchEnd, BestRun
        from launcher.cli.output.answer import answer

        used = total(Usage(queue).now())
        answer(
            BatchEnd(
                name=queue.name,
                items=dict(Counter(map(state_of, items))),
                hours=used.run_s / HOUR_S,
                gpu_hours=used.gpu_s / HOUR_S,
                cost=None if queue.rules.max_cost is None else (used.cents or 0) / 100,
                best=None if results.best is None else BestRun(**results.best._asdict()),
                table=None if results.table is None else str(results.table),
                curves=None if results.picture is None else str(results.picture),
                problems=list(results.problems),
            )
        )
    if results.best is not None:
        best = results.best
        values = values_text(next(item.values for item in items if item.name == best.item))
        step = "" if best.step is None else f" at its best step, {best.step}"
        settings = f" ({values})" if values else ""
        complain(f"  best     {best.item}{settings}, run {best.run}: {best.metric} {best.value:.6g}{step}")
    if results.table is not None:
        complain(f"  table    {shown_path(results.table)}")
    if results.picture is not None:
        complain(f"  curves   {shown_path(results.picture)}")
    for problem in results.problems:
        complain(f"  {problem}")
    if left := _left_there(queue, items, results):
        complain(f"  files    {left}")


def _left_there(queue: BatchQueue, items: Sequence[Item], results: Results) -> str | None:
    """Return a note on runs whose files stay on their hosts because of `artifacts`; None if no run's files do.

    Files from rented machines are always downloaded before the machine is terminated.
    """
    artifacts, home = queue.rules.artifacts, None if results.best is None else results.best.item
    there = [item for item in items if item.run is not None and (artifacts == "none" or item.name != home)]
    if artifacts == "all" or not there:
        return None
    from launcher.backends.registry import backend_of
    from launcher.config.lookup import Lookup

    emptied = {name for name, host in Lookup().hosts.items() if not backend_of(host).upkeep.keeps_files}
    if not (there := [one for one in there if one.host not in emptied]):
        return None
    run = (there[0].run or "").rpartition("-")[2]
    runs = "1 run" if len(there) == 1 else f"{len(there)} runs"
    return f"artifacts = {artifacts}: files of {runs} were not downloaded   launch pull {run}    ({there[0].name})"


@contextlib.contextmanager
def _view(queue: BatchQueue, *, as_json: bool) -> Iterator[_LinesView]:
    console = streams.console(stderr=True)
    if as_json:
        yield _JsonLinesView(Usage(queue))
    elif console.is_terminal:
        with cursor_back_on_stop(console), Live(console=console, auto_refresh=False, transient=True) as live:
            yield _TableView(live, queue)
    else:
        yield _LinesView()


def follow(queue: BatchQueue, *, as_json: bool) -> int:
    """Show a batch that another process runs, until that process ends. Return the exit code."""
    worker = worker_of(queue)
    if worker is not None:
        complain(f"{worker.words} runs {queue.name}; this command only shows it")
    try:
        with _view(queue, as_json=as_json) as view:
            _show_to_end(queue, view)
    except KeyboardInterrupt:
        tell_status(queue, complain, shows_rows=not as_json)
        return 0
    if queue.wishes(BatchRequest.AGAIN):  # the request to retry came too late for that process
        return work(queue, as_json=as_json)
    from launcher.batch.batch_results import written_results

    items = tell_status(queue, complain, shows_rows=not as_json)
    _tell_results(queue, items, written_results(queue), as_json=as_json)
    return exit_code(items, BatchOutcome.OVER)


def _show_to_end(queue: BatchQueue, view: _LinesView) -> None:
    """Show changes until no process runs the batch."""
    known: dict[int, Item] = {}
    while True:
        is_worked = worker_of(queue) is not None
        items = queue.items()
        for item in items:
            if known and known[item.number].state != item.state:
                view.changed(item)
        known = {item.number: item for item in items}
        view.show(items, {})
        if not is_worked:
            return
        time.sleep(LOOK_S)


def work_detached(queue: BatchQueue, *, as_json: bool) -> None:
    """Start a background process on this machine that runs a batch. Raises RunError if it ends at once."""
    log = queue.folder / WORKER_LOG
    with queue.files.open(WORKER_LOG, "ab") as out:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-c",
                "from launcher.cli import main; main()",
                "batch",
                "resume",
                queue.name,
            ],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env={**own_variables.inherited(), "LAUNCH_RUNS": str(queue.folder.parent.parent)},
            start_new_session=True,
        )
    deadline = time.monotonic() + STARTS_S
    while (worker := worker_of(queue)) is None and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if worker is None and process.poll() not in (None, 0):
        raise RunError(
            f"{queue.name}: its process ended at once: {log}\n  again   launch batch resume {queue.name}"
        )
    if as_json:
        print_batch(queue.name, queue.items(), worker)
        return
    say(f"process {process.pid} runs {queue.name}   launch batch status {queue.name}")
    say(f"  its log                               {log}")
    say(f"  if this machine sleeps or goes down   launch batch resume {queue.name}")


def exit_code(items: list[Item], outcome: BatchOutcome) -> int:
    """Return 0 if all items succeeded, 1 if some did not, 4 if hosts do not answer, 5 if some wait for the user.

    For a batch with one item, return the code of `launch`, or 5 if the batch leaves a run that may continue.
    """
    if outcome == BatchOutcome.LEFT:
        return 0
    if outcome == BatchOutcome.SILENT:
        return 4
    if any(item.state != ItemState.ENDED for item in items):
        return 5
    codes = {_EXIT.get(item.outcome or "", 1) for item in items}
    return codes.pop() if len(items) == 1 else int(codes != {0})


def _words(item: Item) -> str:
    words = [item.outcome or ("begun" if item.state == ItemState.CONFIRMED else str(item.state))]
    if item.run is not None:
        words.append(f"{item.run.rpartition('-')[2]} on {item.host}")
    return "  ".join([*words, *(item.why or "").splitlines()[:1]])
