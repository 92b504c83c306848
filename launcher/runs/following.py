"""Follow a run by cursor until it ends; reconnect for ever; bring home what it made."""

from __future__ import annotations

import contextlib
import hashlib
import random
import shutil
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from launcher.errors import AgentError, MalformedAnswerError, RunError, UnreachableError
from launcher.hosts import Desk, connect
from launcher.runs.lineage import joined
from launcher.runs.mirror import Mirror
from launcher.runs.picture import draw
from launcher.runs.tensorboard import TensorBoard
from launcher.runs.view import Result, View
from launcher.values.host import Host
from launcher.values.record import RunState, State, is_terminal

WAIT_S = 5.0
CHUNK = 1 << 18
BACK_OFF_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)


def follow(
    host: Host, mirror: Mirror, view: View, desk: Desk | None = None, *, pulls: bool = True
) -> RunState:
    """Fetch and show a run until it ends, waits or is interrupted; return its state.

    With `pulls`, the artifacts of a run that has succeeded are pulled over the same link.

    `desk` is an open one, taken over. A lost link is opened again, without limit: silence never ends a run.
    Raises HostError only if a person must act (a key, a login) or the host does not have the run.
    """
    fetched = mirror.load()
    with _board(mirror, view) as board:
        board.add(fetched)
        view.begin(mirror.run, mirror.plan().steps, fetched)
        _tell_parent(mirror, view)
        tries = 0
        while True:
            try:
                with desk or connect(host) as link:
                    desk = None
                    if tries:
                        view.back()
                    tries = 0
                    state = _until_end(link, mirror, view, board)
                    if pulls and state.state == State.SUCCEEDED:
                        _bring_home(link, mirror, view)
                    return state
            except UnreachableError as error:
                desk = None
                wait_s = BACK_OFF_S[min(tries, len(BACK_OFF_S) - 1)] * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
                tries += 1
                view.lost(error, tries, wait_s)
                time.sleep(wait_s)


@contextlib.contextmanager
def _board(mirror: Mirror, view: View) -> Iterator[TensorBoard]:
    """Write TensorBoard's files for a while; a failure to write the last of them is reported too."""
    with mirror.disk_errors(mirror.tensorboard):
        board = TensorBoard(mirror.tensorboard)
    try:
        yield board
    finally:
        board.close()
        _tell_problem(board, view)


def _tell_problem(board: TensorBoard, view: View) -> None:
    if board.problem is not None:
        view.note(f"no more for TensorBoard: {board.problem}")
        board.problem = None


def _tell_parent(mirror: Mirror, view: View) -> bool:
    """Say which run a run goes on with, if it does and that has been fetched; return whether it has been."""
    parent = mirror.parent()
    if parent is not None:
        view.continues(mirror.run, parent)
    return parent is not None or mirror.began() is not None


def _until_end(desk: Desk, mirror: Mirror, view: View, board: TensorBoard) -> RunState:
    wait_s = WAIT_S
    is_shown = mirror.began() is not None  # and was shown, if it continues another run
    while True:
        news = mirror.apply(desk.runs.read(mirror.run, mirror.request(), wait_s))
        is_shown = is_shown or _tell_parent(mirror, view)
        wait_s = WAIT_S if _goes_on(news.state) else 0.0
        board.add(news.events)
        view.news(news)
        _tell_problem(board, view)
        if news.is_all and not _goes_on(news.state):
            return news.state


def _bring_home(desk: Desk, mirror: Mirror, view: View) -> None:
    """Pull a run's artifacts. What a second try would find again is said: the run has succeeded all the same."""
    try:
        with view.stage("pull") as stage:
            files = pull(desk, mirror)
            stage.text = f"{files} files" if files else "no artifacts"
    except (AgentError, MalformedAnswerError, RunError) as error:
        view.note(f"not pulled: {str(error).splitlines()[0]}   launch pull {mirror.short}")


def refresh(desk: Desk, mirror: Mirror) -> None:
    """Fetch what is new of a run, without waiting for more."""
    mirror.load()
    while not mirror.apply(desk.runs.read(mirror.run, mirror.request())).is_all:
        continue


def _goes_on(state: RunState) -> bool:
    return not is_terminal(state.state) and state.state not in (State.WAITING, State.INTERRUPTED)


def finish(mirror: Mirror, state: RunState, view: View) -> None:
    """Draw a run's loss and show how it ended."""
    measured = [point for _, point in joined(mirror)]
    picture: Path | None = mirror.picture
    try:
        draw(mirror.run, measured, mirror.picture)
    except RunError:
        picture = None  # a run without a loss has no picture, which is not an error here
    except OSError as error:
        picture = None
        view.note(f"{mirror.picture}: {error.strerror}   launch plot {mirror.short}")
    losses = [point.value for point in measured if point.name == "loss"]
    metrics = {point.name: point.value for point in measured}
    weights = next(
        (path for path in (mirror.artifacts / "adapter", mirror.artifacts / "model") if path.is_dir()), None
    )
    began, ended = mirror.began(), state.time
    seconds = ended - began if ended is not None and began is not None else None
    first_loss = losses[0] if losses else None
    view.end(mirror.run, state, Result(weights, picture, metrics, first_loss, seconds))


def pull(desk: Desk, mirror: Mirror) -> int:
    """Fetch the run's artifacts, verify each, and put them in place as a whole; return the number of files.

    One client at a time; another waits. Raises RunError when what arrives is not what the host says it sent, when the
    host could not read all of it (the rest is in place then), or where this disk refuses.
    """
    part = mirror.folder / "artifacts.part"
    with mirror.alone("pull"), mirror.disk_errors(part):
        shutil.rmtree(part, ignore_errors=True)  # of a client that was killed
        try:
            return _pull(desk, mirror, part)
        finally:
            shutil.rmtree(part, ignore_errors=True)


def _pull(desk: Desk, mirror: Mirror, part: Path) -> int:
    fresh = part / "new"
    fresh.mkdir(parents=True)
    digests: dict[str, str] = {}
    artifacts = desk.runs.pull(mirror.run, lambda stream: _unpack(stream, mirror, fresh, digests))
    sent = {name: file.sha256 for name, file in artifacts.files.items()}
    if sent != digests:
        wrong = min(set(sent.items()) ^ set(digests.items()))[0]
        raise RunError(
            f"{desk.host}: artifact {wrong!r} arrived changed\n  again   launch pull {mirror.short}"
        )
    if digests:
        if mirror.artifacts.exists():
            mirror.artifacts.rename(part / "old")
        fresh.rename(mirror.artifacts)
    if artifacts.left_out:
        reasons = ", ".join(f"{name} ({why})" for name, why in sorted(artifacts.left_out.items())[:5])
        raise RunError(
            f"{desk.host} cannot read {len(artifacts.left_out)} of its artifacts: {reasons}\n"
            f"  the other {len(digests)} are in {mirror.artifacts}; when that is mended   launch pull {mirror.short}"
        )
    return len(digests)


def _unpack(stream: IO[bytes], mirror: Mirror, folder: Path, digests: dict[str, str]) -> None:
    try:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=CHUNK) as archive:
            for member in archive:
                path = PurePosixPath(member.name)
                if not member.isreg() or path.is_absolute() or ".." in path.parts:
                    raise RunError(
                        f"the host sent something that is not an artifact of {mirror.run}: {member.name!r}"
                    )
                target = folder / path
                digest = hashlib.sha256()
                with mirror.disk_errors(target):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    with target.open("xb") as file:
                        for piece in _pieces(archive, member):
                            digest.update(piece)
                            file.write(piece)
                digests[member.name] = digest.hexdigest()
    except (tarfile.TarError, ValueError) as error:
        raise RunError(f"the host did not send a tar of {mirror.run}'s artifacts: {error}") from error


def _pieces(archive: tarfile.TarFile, member: tarfile.TarInfo) -> Iterator[bytes]:
    source = archive.extractfile(member)
    if source is not None:
        while piece := source.read(1 << 20):
            yield piece
