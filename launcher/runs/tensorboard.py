"""TensorBoard's files beside the mirror, written while a run is followed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

from launcher.runs.curves import Point, points
from launcher.spec.record import Event


class TensorBoard:
    """A writer that begins anew each time: its files are a rendering of the mirror, not a record.

    Of several clients that follow a run the first one writes; what the disk refuses is left out.

    It writes in a process of its own: tensorboardX imports torch where there is one (1 s), and nobody who watches a run
    should wait for that, not even for Python's lock.
    """

    def __init__(self, folder: Path) -> None:
        """Write below `folder`, unless another client does."""
        self._folder = folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        self._lock = folder.with_name(".tensorboard.lock").open("ab")
        self._queue: queue.SimpleQueue[Point | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self.problem: str | None = None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._is_first = False
        else:
            self._is_first = True
            shutil.rmtree(folder, ignore_errors=True)

    def add(self, events: Iterable[Event]) -> None:
        """Add the metrics of rank 0."""
        for event in events if self._is_first else ():
            for point in points(event):
                if point.rank == 0:
                    self._queue.put(point)
                    self._start()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write, name="tensorboard", daemon=True)
            self._thread.start()

    def _write(self) -> None:
        """Hand the points to the process; it is a thread that does, for the process may be slow to take them."""
        command = [sys.executable, "-m", __name__, str(self._folder)]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is the follower's
        ) as writer:
            assert writer.stdin is not None  # noqa: S101 - asked for with PIPE
            assert writer.stderr is not None  # noqa: S101 - likewise
            with contextlib.suppress(OSError):  # it has left: its last words say why
                while (point := self._queue.get()) is not None:
                    print(json.dumps([point.name, point.value, point.step, point.time]), file=writer.stdin)
            with contextlib.suppress(OSError):  # likewise, of what was still on its way
                writer.stdin.close()
            said = writer.stderr.read().strip() or "the writer left"
        if writer.returncode != 0:
            self.problem = f"{self._folder}: {said.splitlines()[-1][-200:]}"

    def close(self) -> None:
        """Write what is left, and close; `problem` is then the last word."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        self._lock.close()


def main() -> None:
    """Write the points of standard input, a JSON list a line, to the folder that is named; leave with what the disk says."""
    from tensorboardX import SummaryWriter

    os.nice(19)  # a rendering can wait
    threading.excepthook = lambda failure: _give_up(failure.exc_value)
    try:
        with SummaryWriter(sys.argv[1]) as writer:
            for line in sys.stdin:
                name, value, step, walltime = json.loads(line)
                writer.add_scalar(name, value, step, walltime=walltime)
    except OSError as error:
        _give_up(error)


def _give_up(error: BaseException | None) -> None:
    """Say why, and leave at once: at an ordinary end tensorboardX would try again, and wait for its thread."""
    sys.stderr.write(f"{error.strerror if isinstance(error, OSError) else error}\n")
    sys.stderr.flush()
    os._exit(1)


if __name__ == "__main__":
    main()
