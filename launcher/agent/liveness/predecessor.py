"""Whether the previous agent of a run is dead, so that the run may continue in a new folder.

A free lock proves it where locks are reliable: on the agent's own machine, through the same mount. A reboot
proves it too, if the folder's file system belongs to this one machine. Otherwise only silence proves it, for example
on a home directory that several machines share and whose locks do not reach the other machines: see
`SilenceWatch`.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Optional

from ..record.rundir import HEARTBEAT_S, LIVE, RecordFolder, Run
from ..record.safe_open import read_regular, status_of
from ..system import mounts, process
from . import run_state

if TYPE_CHECKING:
    from ..record.run_records import AgentProcessRecord

CACHE_S = 60.0
"""How long a shared file system may show old contents: the NFS default (`acregmax` in nfs(5))."""
_MAX_BYTES = 4096
_BY_A_CLIENT = ("prepare", "contact")


def lock_decides(run: Run, folder: RecordFolder) -> bool:
    """Whether the folder's lock shows, as seen from here, whether its writer is alive.

    Also true for a run whose locks are never seen as held, as on Slurm or Kaggle: its scheduler or service has
    already been asked, so no wait is needed.
    """
    if run.has_shared_locks or not run_state.probe_of(run).sees_lock:
        return True
    record = folder.read_attempt()
    boot = record.get("boot_id")
    if boot == process.boot_id():
        return record.get("device") in (None, folder.device())
    is_ours = boot is None or run.place_id() == process.host_id()
    return is_ours and mounts.is_of_one_machine(folder.path)


def is_by_a_client(folder: RecordFolder) -> bool:
    """Whether a client's request made the folder.

    No agent writes such a folder, so any process may make the next one.
    """
    return folder.read_attempt().get("kind") in _BY_A_CLIENT


def needs_silence(run: Run) -> Optional[RecordFolder]:
    """Return the last folder of a run if only silence can prove its agent dead; None if no wait is needed."""
    last = run.last()
    return None if last is None or is_by_a_client(last) or lock_decides(run, last) else last


class PredecessorExit:
    """Watch until the previous agent has left, after its run continued in a later folder.

    This is for places where no lock shows whether the previous agent lives. If it lives, it notices the later
    folder, ends its training, and records that it leaves. If it is dead, it gives no sign of life. Silence before
    the watch began is measured by the file system's own times, because the clocks of two machines may differ.
    """

    def __init__(self, folder: RecordFolder, later: RecordFolder) -> None:
        """Begin to watch, once the `later` folder has an attempt on record."""
        self._folder = folder
        self._silence_s = _silence_s(folder)
        self._sign = self._changed()
        self._began_s = time.monotonic()
        if self._sign is not None:
            self._began_s -= max(0.0, status_of(later.attempt).st_mtime - self._sign)

    def is_over(self) -> bool:
        """Whether the agent has left, or is dead."""
        if self._folder.read_state().get("state") not in LIVE or self._has_ended_here():
            return True
        sign = self._changed()
        if sign != self._sign:
            self._sign, self._began_s = sign, time.monotonic()
        return time.monotonic() - self._began_s >= self._silence_s

    def _has_ended_here(self) -> bool:
        """Whether the agent ran on this machine since this boot, and its process is gone."""
        record = self._folder.read_attempt()
        if record.get("boot_id") != process.boot_id():
            return False
        agent: AgentProcessRecord = record.get("agent") or {}
        current = process.find(int(agent.get("pid", 0)))
        return current is None or current.start != agent.get("start") or current.letter == "Z"

    def _changed(self) -> Optional[float]:
        try:
            return status_of(self._folder.heartbeat).st_mtime
        except OSError:
            return None


def _silence_s(folder: RecordFolder) -> float:
    """Return how long an agent must give no sign of life to count as dead, in seconds."""
    return 2 * HEARTBEAT_S + (0.0 if mounts.is_of_one_machine(folder.path) else CACHE_S)


class SilenceWatch:
    """Watch a folder for signs of life.

    An agent is proven dead by silence for two heartbeats, plus the time that a shared disk may hide a sign.
    The time is this process's own monotonic clock, because the clocks of two machines may differ.
    """

    def __init__(self, run: Run, folder: RecordFolder) -> None:
        """Begin to watch."""
        self._run = run
        self._folder = folder
        self._sign = self._read_sign()
        self._began_s = time.monotonic()
        self.lasts_s = _silence_s(folder)
        """How long the silence must last, in seconds."""

    @property
    def left_s(self) -> float:
        """The part of `lasts_s` that remains, in seconds."""
        return max(0.0, self._began_s + self.lasts_s - time.monotonic())

    def look(self) -> Optional[bool]:
        """Return True if the agent is proven dead, False if it lives or the run was taken over, else None."""
        is_over = self.left_s <= 0  # before the look, which may take long
        if self._run.has_folder_after(self._folder) or self._read_sign() != self._sign:
            return False
        return True if is_over else None

    def _read_sign(self) -> Optional[bytes]:
        with contextlib.suppress(OSError):
            return read_regular(self._folder.heartbeat, _MAX_BYTES)
        return None
