"""Follow a run until it ends: fetch its new output, reconnect without limit, download its files."""

from __future__ import annotations

import contextlib
import random
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.filesize import decimal

from launcher.copy import move_records
from launcher.copy.last_seen import last_answer
from launcher.copy.local_copy import LocalCopy
from launcher.errors import HostError, MachineGoneError, RunError, ServiceError, UnreachableError
from launcher.metrics.ancestry import joined
from launcher.metrics.host_figures import host_figures
from launcher.metrics.metric_results import results
from launcher.metrics.picture import draw
from launcher.metrics.tensorboard import TensorBoard
from launcher.rental import records
from launcher.runs.follow import read_position
from launcher.runs.follow.picture_title import title_of
from launcher.runs.follow.refreshing import continues_by_itself
from launcher.runs.follow.view import Result, View
from launcher.runs.pull.checkpoint_pulling import CheckpointKeeper
from launcher.runs.pull.local_copies import LocalCopies
from launcher.runs.pull.pulling import Choice, Pulled, by_number, came, checkpoint_of, pull, shown_path
from launcher.runs.run_client import Opening, open_client
from launcher.transport.client.host_client import HostClient
from launcher.upload.excluded_files import explained
from launcher.values.host import Host
from launcher.values.record import RunState, State, is_terminal
from launcher.values.reported.output import RunOutput

WAIT_S = 5.0
LOST_LINKS = 5
"""The number of lost links after which a pull gives up. Files that have arrived are kept."""
LONG_AGO_S = 120.0
BACK_OFF_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
MAX_ASKED_S = 120.0


Watch = Callable[[UnreachableError | None], None]
"""Called while a run is followed, with the error of a lost link.

If it raises an exception, `follow` ends with that exception.
"""


def no_watch(_error: UnreachableError | None) -> None:
    """Set no limit on following a run."""


def follow(
    host: Host,
    local_copy: LocalCopy,
    view: View,
    client: HostClient | None = None,
    *,
    pulls: bool = True,
    watch: Watch = no_watch,
    opening: Opening | None = None,
    is_seen: bool = True,
) -> RunState:
    """Fetch and show a run until it ends, waits or is interrupted; return its state.

    With `pulls`, the run's files are pulled over the same link once it has ended, successful or not. Unless a
    user sees the output (`is_seen`), it is shown again at the next attach. `client` is an open host client,
    which this function closes. A lost link is reopened by `opening`, without limit: silence never ends a run.
    Raises HostError only if the user must act (a key, a login) or the host does not have the run.
    """
    fetched = local_copy.sync.load(read_position.shown(local_copy) if is_seen else None)
    keeper = CheckpointKeeper(host, local_copy, opening)
    with (
        _board(local_copy, view) as board,
        _noting_shown(local_copy) if is_seen else contextlib.nullcontext(),
    ):
        view.begin(local_copy.run, local_copy.record.plan(), fetched)
        board.add(fetched)
        del fetched  # frees its memory: a run may last for weeks
        _tell_parent(local_copy, view)
        tries = lost_pulls = 0

        def answered() -> None:
            nonlocal tries
            if tries:
                view.back()
            tries = 0

        while True:
            has_ended = False
            try:
                with client or open_client(host, local_copy, opening) as link:
                    client = None
                    known = local_copy.state()
                    has_more = known is None or continues_by_itself(known)  # an ended run sends no more
                    wait_s = None if tries else WAIT_S if has_more else 0.0
                    state = _until_end(link, local_copy, view, board, keeper, watch, answered, wait_s)
                    has_ended = pulls and is_terminal(state.state)
                    if has_ended:
                        _download_files(
                            link, local_copy, view, keeper, is_last_try=lost_pulls + 1 == LOST_LINKS
                        )
                    keeper.finish(view)
                    return state
            except MachineGoneError:
                raise
            except UnreachableError as error:
                client = None
                lost_pulls += has_ended
                if not tries and (words := last_answer(local_copy, LONG_AGO_S)):
                    view.note(words)
                tries += 1
                watch(error)
                pause(view, error, tries)


def pause(view: View, error: UnreachableError, losses: int) -> None:
    """Report that the link is lost, for the `losses`th time, and wait before the next try: longer after each loss.

    A service's own retry delay is respected, up to a limit.
    """
    wait_s = BACK_OFF_S[min(losses, len(BACK_OFF_S)) - 1] * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
    asked_s = error.retry_s if isinstance(error, ServiceError) else None
    wait_s = max(wait_s, min(asked_s or 0.0, MAX_ASKED_S))
    view.lost(error, losses, wait_s)
    time.sleep(wait_s)


@contextlib.contextmanager
def _noting_shown(local_copy: LocalCopy) -> Iterator[None]:
    """Record at the end how much of a run was shown. If the disk refuses, the output is shown again."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            read_position.note(local_copy)


@contextlib.contextmanager
def _board(local_copy: LocalCopy, view: View) -> Iterator[TensorBoard]:
    """Write TensorBoard's files during the block; a failure to write the last of them is reported too."""
    with local_copy.disk_errors(local_copy.tensorboard):
        board = TensorBoard(local_copy)
    try:
        yield board
    finally:
        board.close()
        _tell_problem(board, view)


def _tell_problem(board: TensorBoard, view: View) -> None:
    if board.problem is not None:
        view.note(f"TensorBoard files are no longer written: {board.problem}")
        board.problem = None


def _tell_parent(local_copy: LocalCopy, view: View) -> bool:
    """Show the parent run, if the record of the run's start has been fetched; return whether it has."""
    parent = local_copy.record.parent()
    if parent is not None:
        view.continues(local_copy.run, parent)
        if words := move_records.still_training(local_copy, parent):
            view.note(words)
    return parent is not None or local_copy.record.began() is not None


def _until_end(
    client: HostClient,
    local_copy: LocalCopy,
    view: View,
    board: TensorBoard,
    keeper: CheckpointKeeper,
    watch: Watch,
    answered: Callable[[], None],
    wait_s: float | None,
) -> RunState:
    """Show a run until it ends or pauses; `answered` is called after each answer.

    The host delays its first answer up to `wait_s` until it has new output. With `None` it answers at once
    with the output so far, which proves that a service is reachable.
    """
    is_shown = local_copy.record.began() is not None  # its parent, if any, was already shown
    while True:
        watch(None)
        news = local_copy.sync.apply(client.runs.read(local_copy.run, local_copy.sync.request(), wait_s))
        answered()
        is_shown = is_shown or _tell_parent(local_copy, view)
        wait_s = WAIT_S if continues_by_itself(news.state) else 0.0
        board.add(news.events)
        view.news(news._replace(state=news.state.on(client.host)))
        if local_copy.record.plan().checkpoints == "pull" and any(
            event.kind == "checkpoint" for event in news.events
        ):
            keeper.wake()
        keeper.tell(view)
        _tell_problem(board, view)
        if news.is_all and not continues_by_itself(news.state):
            return news.state


def _download_files(
    client: HostClient, local_copy: LocalCopy, view: View, keeper: CheckpointKeeper, *, is_last_try: bool
) -> None:
    """Pull a run's files.

    A failure is only noted: the run has ended anyway, and the pull can be repeated. Raises
    UnreachableError for a lost link, so that the next try downloads the missing files. On the last try a lost
    link is only noted too.
    """
    again = f"launch pull {local_copy.short}"
    try:
        with view.stage("pull") as stage:
            pulled = pull(client, local_copy, Choice(local_copy.record.plan().pull_limit), stage)
            stage.text = came(pulled) if pulled.fetched or pulled.present else None
    except (HostError, RunError) as error:
        if isinstance(error, UnreachableError) and not is_last_try:
            raise
        view.note(f"not pulled: {str(error).splitlines()[0]}   {again}")
        return
    keeper.finish(view)  # otherwise the files that it is downloading would count as left on the host
    stays = not records.ends_with(local_copy.run)
    for text in (
        *what_stayed(pulled, client.host, local_copy, stays=stays),
        what_failed(pulled, client.host, local_copy),
    ):
        if text:
            view.note(text)


def what_stayed(pulled: Pulled, host: str, local_copy: LocalCopy, *, stays: bool = True) -> list[str]:
    """Return a line for each renamed file, and for each kind of file left on the host, with the command to get it.

    On a rented machine that ends with its run no files stay (`stays` is false): the end of the rental
    downloads the rest, and reports the lost files.
    """
    short = local_copy.short
    lines = [
        f"{path.relative_to(local_copy.folder)} is the file that you had changed here"
        for path in pulled.yours
    ]
    if not stays:
        return lines
    if pulled.over_limit:
        lines.append(
            f"over the limit of {decimal(local_copy.record.plan().pull_limit)}, still on {host}: {_listed(pulled.over_limit)}"
            f"   launch pull {short} --all"
        )
    if checkpoints := checkpoints_left(pulled, local_copy):
        size = decimal(sum(file.size for file in checkpoints))
        folders = sorted({checkpoint_of(file.path) for file in checkpoints}, key=by_number)
        more = f" and {len(folders) - 3} more" if len(folders) > 3 else ""
        lines.append(
            f"checkpoints stay on {host}: {', '.join(folders[-3:])}{more} ({size})   launch pull {short} {folders[-1]}"
        )
    return lines


def checkpoints_left(pulled: Pulled, local_copy: LocalCopy) -> list[RunOutput]:
    """Return the checkpoint files that a pull left on the host, without those that are already here."""
    copies = LocalCopies(local_copy)
    return [file for file in pulled.checkpoints if copies.status(file) != "yes"]


def what_failed(pulled: Pulled, host: str, local_copy: LocalCopy) -> str | None:
    """Return a note on the files that the host could not send, with the reasons and the retry command; None if it sent all."""
    if not pulled.left_out:
        return None
    reasons = ", ".join(f"{shown_path(path)} ({why})" for path, why in sorted(pulled.left_out.items())[:5])
    again = f"launch pull {local_copy.short}"
    return f"{host} cannot send {len(pulled.left_out)} of its files: {reasons}   {again}"


def _listed(files: list[RunOutput]) -> str:
    words = [f"{shown_path(file.path)} ({decimal(file.size)})" for file in files[:3]]
    return ", ".join(words) + (f" and {len(files) - 3} more" if len(files) > 3 else "")


def _correct(local_copy: LocalCopy, state: RunState, view: View) -> None:
    """Note where the script's use of the plan differs from the use that its source suggested."""
    expected, taken = local_copy.record.plan().takes, state.taken
    if expected is None or taken is None:
        return
    words = {"precision": "precision", "split": "batch"}
    if own := [word for value, word in words.items() if value in expected and value not in taken]:
        view.note(f"your script took no {' and no '.join(own)} from the plan: it set its own")
    more = [word for value, word in words.items() if value in taken and value not in expected]
    if (
        more and not local_copy.record.plan().adapt
    ):  # the hook takes the batch in order to halve it if memory runs out
        view.note(f"your script took its {' and '.join(more)} from the plan   launch explain")


def _is_rehearsed(local_copy: LocalCopy, state: RunState) -> bool:
    """Return whether a rehearsed run is evidence for its card.

    For a script that takes no values from the plan, the hook imitates the card.
    """
    if not state.rehearsed or state.reason == "not-rehearsable":
        return False
    return state.taken != set() or local_copy.record.plan().takes == []


def _is_drawn(local_copy: LocalCopy) -> bool:
    """Return whether the picture is newer than all of the run's data.

    False for a run with a parent, because the parent's data may be newer.
    """
    if local_copy.record.parent() is not None:
        return False
    drawn, sources = (
        local_copy.files.status(local_copy.picture),
        map(local_copy.files.status, local_copy.record.sizes()),
    )
    return drawn is not None and all(
        one is not None and one.st_mtime_ns < drawn.st_mtime_ns for one in sources
    )


def finish(local_copy: LocalCopy, state: RunState, view: View) -> None:
    """Draw a run's loss and show its end."""
    # These load all of planning, which would delay the first line of `launch attach`.
    from launcher.runs.follow.precision_report import known_precision
    from launcher.runs.follow.script_bug import mending_check
    from launcher.runs.launch.adapting import mending_command

    if state.state == State.SUCCEEDED:
        _correct(local_copy, state, view)
    of_runs = joined(local_copy)
    measured = [point for _, point in of_runs]
    picture: Path | None = local_copy.picture
    report = known_precision(local_copy)
    try:
        if not _is_drawn(local_copy):
            with view.stage("curve") as stage:  # loading the drawing library takes seconds
                stage.text = None
                png = draw(local_copy.run, measured, host_figures(local_copy), title_of(local_copy, report))
                local_copy.files.write(local_copy.picture, png)
    except RunError:
        picture = None  # a run without a loss has no picture, which is not an error here
    except OSError as error:
        picture = None
        view.note(f"{local_copy.picture}: {error.strerror}   launch plot {local_copy.short}")
    losses = [point.value for point in measured if point.name == "loss"]
    if measured and measured[-1].step is None:
        metrics = {name: one.final for name, one in results(local_copy.run, of_runs).items()}
    else:  # the same, in a tenth of the time
        metrics = {point.name: point.value for point in measured}
    weights = next(
        (
            path
            for path in (local_copy.artifacts / "adapter", local_copy.artifacts / "model")
            if local_copy.files.is_folder(path)
        ),
        None,
    )
    first_loss = losses[0] if losses else None
    if state.evidence is not None:
        state = state.model_copy(update={"evidence": explained(local_copy.files, state.evidence)})
    home = {
        path: one.st_size
        for path, one in LocalCopies(local_copy).files().items()
        if stat.S_ISREG(one.st_mode)
    }
    is_safest = report is not None and report.ran is not None and report.ran.is_safest
    adapted = None if is_safest else mending_command(local_copy, state)
    is_rehearsed = _is_rehearsed(local_copy, state)
    result = Result(
        weights,
        home,
        picture,
        metrics,
        first_loss,
        local_copy.took_s() if state.took_s is None else state.took_s,
        adapted,
        mending_check(local_copy, state),
        local_copy.folder,
        is_rehearsed,
        report.unsound if report else None,
        move_records.successor_of(local_copy),
        records.rents_at(local_copy.run),
        records.rent_cost(local_copy.run),
        local_copy.is_scheduled,
    )
    view.end(local_copy.run, state, result)
