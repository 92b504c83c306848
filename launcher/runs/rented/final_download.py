"""Download a run's files from a machine that will be terminated: everything that fits, verified by the host's digests."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.filesize import decimal

from launcher.copy.local_copy import LocalCopy
from launcher.errors import AgentError, LaunchError, RunError, UnreachableError
from launcher.rental import records
from launcher.rental.records import RentalRecord
from launcher.rental.renting import minutes_text
from launcher.runs.follow.evidence import of_rent
from launcher.runs.follow.following import LOST_LINKS, checkpoints_left, pause
from launcher.runs.follow.refreshing import refresh
from launcher.runs.follow.summaries import known_summary
from launcher.runs.pull.checkpoint_pulling import WHOLE, pull_checkpoint
from launcher.runs.pull.local_copies import LocalCopies
from launcher.runs.pull.pulling import Choice, by_number, came, checkpoint_of, pull, shown_path
from launcher.runs.rented.rented_runs import local_copy_of
from launcher.runs.run_client import open_client
from launcher.transport.client.host_client import HostClient
from launcher.values.record import State, is_terminal
from launcher.values.reported.output import RunOutput

if TYPE_CHECKING:
    from launcher.base.meter import Moved
    from launcher.rental.lease.release import Opening
    from launcher.rental.lease.rental_lease import Lease
    from launcher.runs.follow.view import Stage, View
    from launcher.values.host import Host

OLDER_BYTES = 20_000_000_000
"""The maximum bytes of a script's older checkpoints to download: this costs a few minutes of rent."""
NO_LIMIT = sys.maxsize
"""No size limit: files cannot be fetched from a terminated machine."""
MAX_NAMED = 8
STEADY_S = 5.0
"""How long a transfer is observed before its rate counts as known, in seconds."""
NEVER_BEGUN = "its run never began"
REMOVED = "its run was removed there"


class RunOnMachine(NamedTuple):
    """The run of a lease: its local copy, its rented machine, and the view that shows the downloads."""

    local_copy: LocalCopy
    machine: Host
    view: View

    @property
    def is_known(self) -> bool:
        """Whether a state of the run was fetched, which proves that it has begun."""
        return self.local_copy.state() is not None

    @property
    def is_stopped_by_limit(self) -> bool:
        """Whether it was stopped because its machine's time is up, according to the local copy."""
        state = self.local_copy.state()
        return state is not None and of_rent(state.evidence)

    def has_ended(self, opening: Opening) -> str | None:
        """Ask the machine; return the state of a run that has ended or needs a user, None if it continues.

        Raises NoRunError, HostError.
        """
        with open_client(self.machine, self.local_copy, opening) as client:
            state = known_summary(client, self.local_copy.run).state
        is_over = is_terminal(state) or state in (State.WAITING, State.INTERRUPTED)
        return state if is_over else None

    def download_files(self, lease: Lease, *, is_last: bool) -> None:
        """Download the run's files, each verified by its hash. A lost link is reopened a few times.

        The last try stops only when the machine is gone or the download time is over. Raises RunError if a
        file cannot be fetched, and HostError; all other files have been fetched then.
        """
        losses = 0
        while True:
            try:
                with open_client(self.machine, self.local_copy, lease.opening) as client:
                    download_files(client, self.local_copy, self.view, lambda: lease.left_s)
                    return
            except UnreachableError as error:
                losses += 1
                if losses == LOST_LINKS:
                    raise
                if is_last:
                    lease.look(self.view, is_silent=True)
                else:
                    lease.watch(self.view, error)
                pause(self.view, error, losses)

    def missing(self, opening: Opening) -> str:
        """Ask the machine which of its files are not here, and return them in words; empty if all are here."""
        try:
            with open_client(self.machine, self.local_copy, opening) as client:
                return missing(client, self.local_copy)
        except (LaunchError, OSError):
            return "its machine did not list its files"

    def forgo(self, opening: Opening) -> str | None:
        """Make sure that the machine never begins the run; return the reason why its rental can end.

        None if the run has begun, or its machine is kept. Raises HostError.
        """
        found = records.rented_for(self.local_copy.run)
        if found is not None and found.record.keeps and self.is_known:
            return None
        with open_client(self.machine, self.local_copy, opening) as client:
            is_forgone = client.preparation.forgo(self.local_copy.run)
        if not is_forgone:
            return None
        return REMOVED if self.is_known else NEVER_BEGUN


def run_of(record: RentalRecord, view: View) -> RunOnMachine | None:
    """Return the run of a rental; None if it never began."""
    local_copy = local_copy_of(record)
    return None if local_copy is None else RunOnMachine(local_copy, record.machine, view)


class _TimedStage:
    """A stage that notes once if a transfer cannot finish in the remaining time."""

    def __init__(self, stage: Stage, local_copy: LocalCopy, view: View, left_s: Callable[[], float]) -> None:
        self._stage, self._local_copy, self._view, self._left_s = stage, local_copy, view, left_s
        self._began, self._is_said = time.monotonic(), False
        self.text: str | None = None

    def progress(self, step: str, /) -> None:
        """Show the progress."""
        self._stage.progress(step)

    def moved(self, moved: Moved, /) -> None:
        """Show the progress of a transfer, and warn once if it cannot finish in time."""
        self._stage.moved(moved)
        takes_s, is_sent = moved.eta_s, not moved.doing
        if self._is_said or not is_sent or takes_s is None or time.monotonic() - self._began < STEADY_S:
            return
        if takes_s > (left_s := self._left_s()):
            self._is_said = True
            hours = max(0.1, round((takes_s - left_s) / 3600 + 0.1, 1))
            self._view.note(
                f"{self._local_copy.run}: the download will not finish before the limit: {decimal(moved.total - moved.done)} at {decimal(int(moved.bytes_per_s))}/s"
                f" take {minutes_text(takes_s / 60)}, and {minutes_text(max(0.0, left_s) / 60)} are left"
                f"   more time   launch extend {self._local_copy.short} --hours {hours:g}"
            )


def download_files(
    client: HostClient, local_copy: LocalCopy, view: View, left_s: Callable[[], float] | None = None
) -> None:
    """Download all files of a run from a machine that will be terminated, verified by the host's digests.

    The files include the newest whole checkpoint, and checkpoints that the script saves itself, up to a total
    size. A note names the others, which are lost with the machine. `left_s` returns the remaining time; a
    note appears as soon as a transfer is known not to finish in it. Raises RunError if a file cannot be sent
    or does not fit here, and HostError; all other files have been fetched then.
    """
    refresh(client, local_copy)
    with view.stage("home") as shown:
        stage = shown if left_s is None else _TimedStage(shown, local_copy, view, left_s)
        pulled = pull(client, local_copy, Choice(NO_LIMIT, fits=True), stage)
        words, failed = [came(pulled)], {**pulled.left_out}
        folders = own_checkpoints(pulled.checkpoints)
        try:
            words.append(pull_checkpoint(client, local_copy, WHOLE, stage).words)
        except AgentError as error:
            if error.code != "no-checkpoint":
                raise
        except RunError as error:  # other files may fit
            failed["checkpoints"] = str(error).splitlines()[0]
        if folders:
            saved = pull(client, local_copy, Choice(NO_LIMIT, paths=(*folders,), fits=True), stage)
            words.append(f"{_last_names(folders)}: {came(saved)}")
            failed |= saved.left_out
        if failed:
            path, why = min(failed.items())
            more = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
            raise RunError(f"{local_copy.run}: {shown_path(path)} cannot be downloaded: {why}{more}")
        shown.text = "; ".join([*words, "each verified"])
    if older := checkpoints_left(pulled, local_copy):
        names = sorted({checkpoint_of(file.path) for file in older}, key=by_number)
        size = decimal(sum(file.size for file in older))
        view.note(f"older checkpoints are lost with the machine: {_last_names(names)} ({size})")


def _last_names(folders: Sequence[str]) -> str:
    """Return the names of the last folders, and the number of the others."""
    more = f" and {len(folders) - MAX_NAMED} more" if len(folders) > MAX_NAMED else ""
    return f"{', '.join(folders[-MAX_NAMED:])}{more}"


def own_checkpoints(files: Iterable[RunOutput]) -> list[str]:
    """Return the checkpoints to download that a script saved itself, which may be its only results.

    They are the newest checkpoint of each series, and the newest finished one. A checkpoint without
    `trainer_state.json` is unfinished: its Trainer was killed while saving. Older ones are included up to a
    total size.
    """
    sizes: dict[str, int] = {}
    finished: set[str] = set()
    for file in files:
        if file.path.startswith("checkpoints/"):  # one of the checkpoints that launcher sealed is enough
            continue
        folder = checkpoint_of(file.path)
        sizes[folder] = sizes.get(folder, 0) + file.size
        if file.path.endswith("/trainer_state.json"):
            finished.add(folder)
    in_order = sorted(sizes, key=by_number)
    newest = {by_number(folder)[0]: folder for folder in in_order}
    newest_finished = {by_number(folder)[0]: folder for folder in in_order if folder in finished}
    left, chosen = OLDER_BYTES, {*newest.values(), *newest_finished.values()}
    for folder in sorted(sizes.keys() - chosen, key=lambda one: -by_number(one)[1]):
        left -= sizes[folder]
        if left < 0:
            break
        chosen.add(folder)
    return sorted(chosen, key=by_number)


def missing(client: HostClient, local_copy: LocalCopy) -> str:
    """Return in words which files of a run's machine are not here; empty if all are.

    Raises HostError, OSError.
    """
    listed = client.runs.outputs(local_copy.run, lambda _read: None, every_file=False)
    copies = LocalCopies(local_copy)
    files = [file for file in listed.files if copies.status(file) != "yes"]
    sizes: dict[str, int] = {}
    for file in files:
        name = checkpoint_of(file.path) if file.kind == "checkpoint" else shown_path(file.path)
        sizes[name] = sizes.get(name, 0) + file.size
    names = [f"{name} ({decimal(size)})" for name, size in sorted(sizes.items(), key=lambda one: -one[1])]
    names += [f"{shown_path(path)} ({why})" for path, why in sorted(listed.left_out.items())]
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"
