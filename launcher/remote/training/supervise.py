"""The agent beside the training: starts it, writes down what it says, ends it, and says how it ended.

One attempt is one numbered folder, of which this process is the only writer. Where a failure has a remedy, the next
attempt begins at once, in this process: it holds the next folder before it lets go of the last one, so that at no moment
nobody holds the run. It leaves with 0 after a terminal state is on disk, and with 75 for "bring me back".
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from typing import TYPE_CHECKING, Any

from ..diagnosis import remedy
from ..diagnosis.logscan import Divergence, LogScanner
from ..fate import run_state
from ..record import precision_evidence, secret, strict_json
from ..record.rundir import (
    NO_ROOM,
    TERMINAL,
    VERSION,
    Appender,
    Folder,
    Run,
    place_of,
    read_json,
    write_durably,
)
from ..store import checkpoints
from ..system import oom, process
from ..system.attending import reap
from .liveness import Liveness
from .variables import interpreter_of, native_command, variables

if TYPE_CHECKING:
    from ..cards import lease

BRING_ME_BACK = 75
HEARTBEAT_S = 5.0
WISH_S = 0.5
DRAIN_S = 2.0
LEFTOVER_GRACE_S = 3.0
LOST_LOSSES = 3  # running: the worker's guard, where a script has one, is quicker
TRIP_GRACE_S = 5.0  # to end by itself, with a traceback; SIGTERM would make it save what it has
STACKS_GRACE_S = 2.0  # for the stacks of a hang to arrive
BETWEEN_S = 3.0  # from SIGTERM to the step that heeds it, beside the step's own time
NO_ROOM_S = 1.0
BUSY_S = 3.0  # between looks at a card that somebody holds
UNSEEN_S = 30.0  # before a card is tried again whose holders are not told; twice as long each time
MAX_EVENT_BYTES = 16 * 1024 * 1024
MOST_CHARS = 500
_FROM_A_WORKER = frozenset({"kind", "rank", "time"})
_FROM_US = frozenset({"version", "attempt"})
_HELD = "held "  # before the name of a knob that the script sets itself
_NON_FINITE = ("nan", "inf", "-inf")
_TRIPS = ("nan-divergence", "not-learning")  # what a worker's guard may give up for
_TIME_LIMIT = "time-limit"
MAX_SOCKET_PATH = 100  # bytes: sun_path holds 104 on macOS, 108 on Linux


def main(arguments: list[str]) -> int:
    """Make attempts of a run until none follows; `arguments` are its folder and what our parent saw of the agent before."""
    run = Run(os.path.abspath(arguments[0]))
    seen = strict_json.decode(arguments[1]) if len(arguments) > 1 else None
    last = run.last()
    if last is not None and last.read_state().get("state") in TERMINAL:
        return 0
    process.become_subreaper()
    if not (run.prepared().get("runtime") or {}).get("gpus"):
        return _make_attempts(Supervisor(run, last, seen))[0]
    from ..cards import lease  # with all that it needs it takes as long to load as the rest of the agent

    cards = lease.claim(run)
    if not cards.gpus and run.read_wish() == "run":
        lease.write_waiting(run, cards.busy)
        return 0
    status, last_attempt = _make_attempts(Supervisor(run, last, seen, cards))
    if last_attempt.state in TERMINAL:
        with contextlib.suppress(OSError):  # a sweep removes them, and nobody takes them for held
            lease.give_back(run)
    if last_attempt.cards is not None:
        last_attempt.cards.release()
    return status


def _make_attempts(attempt: Supervisor) -> tuple[int, Supervisor]:
    """Make attempts until none follows; return the agent's exit status, and the last attempt."""
    while (status := attempt.supervise()) is None:
        attempt = attempt.make_next()
    return status, attempt


class Supervisor:
    """One attempt from its folder to its end."""

    def __init__(
        self, run: Run, last: Folder | None, seen: dict[str, Any] | None, cards: lease.Taken | None = None
    ) -> None:
        """Make the attempt's folder; `seen` is what the parent saw of the agent before this one, `cards` are the run's."""
        self.run = run
        self.cards = cards
        self.plan = read_json(run.plan)
        self.secrets = secret.read(run)
        self.redactor = secret.Redactor(self.secrets.values())
        folders = [run.folder(number) for number in run.numbers()]
        self.history = [(read_json(one.attempt), one.read_state()) for one in folders]
        self.begun = sum(bool(state.get("began")) for _, state in self.history)
        self.in_force = remedy.in_force(self.history)
        self.previous = self.redactor.redact(_previous(last, seen))
        self.folder = run.new_folder()
        self.attempt = 1 + self.begun
        self.events = Appender(self.folder.events)
        self.log = Appender(self.folder.log)
        self.step: int | None = None
        self.loss: Any = None
        self.marker: int | None = None
        self.was_asked_to_end = False
        self.is_marked = False
        self.uses_worker = False
        self.has_worker_metrics = False
        self.state = "preparing"
        self.has_begun = False
        self.consumed: set[str] = set()
        self.failure: dict[str, Any] | None = None
        self.kill_at = float("inf")
        self.chosen = checkpoints.Choice(None, None, {})
        self.checkpoint: int | None = None
        self.save_s = max((state.get("save_s") or 0.0 for _, state in self.history), default=0.0)
        self.liveness = Liveness(_seconds(self.plan.get("hang_minutes")))
        self.began_s = time.monotonic()
        self.look_again = self.began_s + WISH_S
        self.ran_before_s = sum(_ran_s(self.run.folder(number)) for number in self.run.numbers())
        self.oom_kills = oom.kills()
        self.has_trained = False
        self.doubtful_from = 1  # the first step whose update no loss has shown to be good
        self.lost_losses = 0
        self.proof: dict[str, Any] | None = None
        self.terminations: list[int] = []

    def make_next(self) -> Supervisor:
        """Make the attempt that follows this one, whose lock is let go once the next one's is held."""
        following = Supervisor(self.run, self.folder, None, self.cards)
        following.terminations = self.terminations
        self.folder.release()
        return following

    def supervise(self) -> int | None:
        """Run the attempt; return the agent's exit status, None where another attempt follows."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda got, _frame: self.terminations.append(got))
        verdict = self._settle_what_was_left_open()
        self._write_attempt()  # at once: whoever started us waits for it, and to prove a checkpoint takes its time
        self._look_after_checkpoints()
        if self.chosen.path is not None:
            self._write_attempt()
        with contextlib.suppress(FileNotFoundError):  # it is on record now
            os.unlink(self.run.container_end)
        if self.previous:
            self._record("evidence", values={"previous": self.previous})
        status = self._end_early(verdict)
        if status is None and (self.in_force.remedy or {}).get("class") == "gpu-busy-exclusive":
            self._await_cards()
            status = self._end_early(verdict)
        return self._begin() if status is None else status

    def _end_early(self, verdict: remedy.Verdict | None) -> int | None:
        """End the attempt before its command begins where that is not to begin; return None where it is."""
        wish = self.run.read_wish()
        if wish != "run":
            return self._end("cancelled", _reason_of(wish), {})
        if self.terminations:  # the host goes down before the command began
            self._say("resuming", "host-shutdown")
            return BRING_ME_BACK
        if verdict is not None and verdict.remedy is None:
            told = _told(self.in_force.failure or {})
            return self._end("failed", verdict.reason, {**told, "mend": verdict.mend})
        if self._time_left_s() <= 0:
            return self._end("cancelled", "time-limit", {})
        if self.begun >= int(self.plan.get("attempts", 1)):
            return self._end("failed", "attempts-exhausted", {"attempts": self.begun})
        if self.begun and self.in_force.remedy is None and not self._may_begin_again():
            return self._end("failed", "not-restartable", {"previous": self.previous})
        missing = sorted(set(self.plan.get("secrets") or ()) - set(self.secrets))
        if missing:
            return self._end("failed", "never-started", {"secrets": "missing: " + ", ".join(missing)})
        return None

    def _await_cards(self) -> None:
        """Come by cards that admit us, ours or others in their place; to wait for them is not to run."""
        began_s = time.monotonic()
        self._look_for_cards()
        self.began_s += time.monotonic() - began_s

    def _look_for_cards(self) -> None:
        """Look for cards that admit us until there are some, and say who holds them."""
        from . import card_admission

        told = None
        while self.cards is not None and not self._is_wanted_no_more():
            found = card_admission.come_by_cards(self.run, self.cards)
            if found is None:
                tries = remedy.tries(
                    self.history, "gpu-busy-exclusive", checkpoints.newest(self.run.checkpoints)
                )
                self._pause(UNSEEN_S * 2 ** max(0, tries - 1))
                return
            had, self.cards = self.cards.gpus, found.taken
            if self.cards.gpus != had:
                self._record("evidence", values={"cards": {"from": had, "to": self.cards.gpus}})
                self._write_attempt()
            if found.holders is None:
                return
            if found.holders != told:
                told = found.holders
                self._say("resuming", "card", evidence={"card": told})
                self._record("evidence", values={"card": told})
            self._pause(BUSY_S)

    def _pause(self, pause_s: float) -> None:
        """Wait so long, or until nobody wants the run any more."""
        deadline = time.monotonic() + pause_s
        while time.monotonic() < deadline and not self._is_wanted_no_more():
            time.sleep(0.1)

    def _begin(self) -> int | None:
        """Run the command; return the agent's exit status, None where another attempt follows."""
        private = tempfile.mkdtemp(prefix="launch-")
        if len(os.fsencode(private)) > MAX_SOCKET_PATH:  # a long TMPDIR
            os.rmdir(private)
            private = tempfile.mkdtemp(prefix="launch-", dir="/tmp")
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                path = os.path.join(private, "s")
                listener.bind(path)
                listener.listen(128)
                return self._train(listener, path)
        finally:
            shutil.rmtree(private, ignore_errors=True)

    # the attempt's values

    def _settle_what_was_left_open(self) -> remedy.Verdict | None:
        """Decide on a failure whose agent died before it could; return the verdict, None where none was left open."""
        failure = self.in_force.failure
        if failure is None:
            return None
        self._set_aside(failure)
        began = [place for place, (_, state) in enumerate(self.history) if state.get("began")]
        verdict = self._decide(failure, self.history[: began[-1]], self.begun)
        self._make_room(failure, prunes=verdict.remedy is not None)
        if verdict.remedy is not None:
            self._record_remedy(self.begun, failure, verdict.remedy)
            changes = {**self.in_force.changes, **verdict.remedy["changes"]}
            self.in_force = remedy.InForce(changes, verdict.remedy, None)
        return verdict

    def _look_after_checkpoints(self) -> None:
        """Put in order what earlier attempts have left, while nobody writes there, and choose where to go on from."""
        folder = self.run.checkpoints
        torn = checkpoints.tidy(folder, "checkpoints" in self._consumed_so_far())
        try:
            self.chosen = checkpoints.choose(folder, self._is_wanted_no_more)
        except checkpoints.GivenUpError:  # what was asked for follows at once
            return
        checkpoints.set_aside_damaged(folder, self.chosen)
        self.checkpoint = self.chosen.step
        found = {"torn": torn, "damaged": self.chosen.damaged}
        if any(found.values()):
            self._record(
                "evidence", values={"checkpoints": {name: one for name, one in found.items() if one}}
            )

    def _is_wanted_no_more(self) -> bool:
        """Whether the host goes down or somebody wants the run to end, looked at now and then."""
        now = time.monotonic()
        if now >= self.look_again:
            self.look_again = now + WISH_S
            self.beat()
            return bool(self.terminations) or self.run.read_wish() != "run"
        return bool(self.terminations)

    def _write_attempt(self) -> None:
        records = [record for record, _ in self.history]
        prepared: dict[str, Any] = next((one for one in records if one.get("kind") == "prepare"), {})
        runtime: dict[str, Any] = prepared.get("runtime") or {}
        if self.cards is not None:
            runtime = {**runtime, "gpus": self.cards.gpus}
        me = process.find(os.getpid())
        plan, changes = self.plan, self.in_force.changes
        rung = self.rung
        split = {name: changes[name] for name in ("micro_batch", "accumulation") if name in changes}
        for folder in (self.run.artifacts, self.run.checkpoints, self.run.cache):
            os.makedirs(folder, exist_ok=True)
        self.attempt_record = {
            "version": VERSION,
            "run": self.run.id,
            "kind": "attempt",
            "folder": self.folder.number,
            "attempt": self.attempt,
            "time": time.time(),
            "place_id": place_of(prepared) or process.host_id(),
            "boot_id": process.boot_id(),
            "agent": {"pid": os.getpid(), "start": me.start if me else ""},
            "runtime": runtime,
            "previous": self.previous,
            "rung": rung,
            "precision": self.ladder[rung],
            "remedy": self.in_force.remedy,
            "changes": changes,
            "rehearsed": self.is_rehearsed,
            "checkpoint": checkpoints.describe(self.chosen),
            "split": {**plan["split"], **split} if plan.get("split") else None,
            "steps": plan.get("steps"),
            "port": _free_port(),
            "seed": plan.get("seed"),
            "loader_workers": changes.get("loader_workers", plan.get("loader_workers")),
            "activation_checkpointing": changes.get("activation_checkpointing", False),
            "save_every_steps": plan.get("save_every_steps"),
            "save_every_minutes": plan.get("save_every_minutes"),
            "keep_checkpoints": changes.get("keep_checkpoints", plan.get("keep_checkpoints")),
            "method": plan.get("method"),
            "model": self._located(plan.get("model"), "model", runtime),
            "data": {
                name: self._located(one, name, runtime) for name, one in (plan.get("data") or {}).items()
            },
            "settings": plan.get("settings"),
            "folders": {
                "run": self.run.path,
                "code": self.run.code,
                "artifacts": self.run.artifacts,
                "checkpoints": self.run.checkpoints,
                "cache": self.run.cache,
            },
        }
        write_durably(self.folder.attempt, strict_json.encode(self.attempt_record) + "\n")

    def _located(self, source: dict[str, str] | None, name: str, runtime: dict[str, Any]) -> str | None:
        """Return where the script finds a source: shipped files lie under the run's data folder by name."""
        if source is None:
            return None
        if source["kind"] == "host":
            return str((runtime.get("paths") or {}).get(source["value"], os.path.expanduser(source["value"])))
        if source["kind"] == "name":
            return source["value"]
        folder = os.path.join(self.run.data, name)
        names = os.listdir(folder) if os.path.isdir(folder) else []  # an empty folder does not travel
        return os.path.join(folder, *names[:1])  # the client put one thing there

    @property
    def ladder(self) -> list[Any]:
        """The plan's precisions, the best first."""
        return self.plan.get("ladder") or [None]

    @property
    def rung(self) -> int:
        """The place in the ladder that is in force."""
        return int(self.in_force.changes.get("rung", 0))

    @property
    def ranks(self) -> int:
        """How many processes train, each on a card of its own."""
        return int((self.plan.get("split") or {}).get("ranks") or 1)

    @property
    def is_rehearsed(self) -> bool:
        """Whether a card's plan is tried on a CPU."""
        return self.plan.get("rehearsed") is True

    def _consumed_so_far(self) -> set[str]:
        """Return the knobs that the run's script has consumed, in whichever attempt, and does not set itself."""
        earlier = (state.get("consumed") or [] for _, state in self.history)
        told = self.consumed.union(*earlier)
        return {knob for knob in told if not knob.startswith(_HELD) and _HELD + knob not in told}

    def _may_begin_again(self) -> bool:
        """Whether the script can be started once more: it asked the worker where to resume from, or the job says so."""
        return bool(self.plan.get("restart")) or "resume" in self._consumed_so_far()

    # the training process

    def _train(self, listener: socket.socket, socket_path: str) -> int | None:
        runtime = self.attempt_record["runtime"] or {}
        words = [str(word) for word in self.plan["command"]]
        command = native_command(words, interpreter_of(runtime), self.ranks)
        # On disk before the command starts: an attempt is counted once it may have done something.
        self.has_begun = True
        self._say("running", must=True)
        try:
            child = subprocess.Popen(
                command,
                cwd=self.run.code,
                env=self._environment(runtime, socket_path),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return self._end("failed", "command-not-found", {"command": command[0], "error": str(error)})
        told = {"state": "running", "command": command, "pid": child.pid, "from": self.chosen.step}
        self._record("state", values=told)
        stop = _Stopping()
        with selectors.DefaultSelector() as selector:
            hub = _Hub(self, selector, listener, child)
            while (status := reap(child)) is None:
                hub.turn(0.1)
                self._heed(stop, child.pid)
            remaining = self._end_leftovers(stop, hub)
            hub.drain()
        return self._judge(status, stop, remaining)

    def _environment(self, runtime: dict[str, Any], socket_path: str) -> dict[str, str | bytes]:
        """Return the training's environment: the only one that holds the secrets."""
        return {
            **{name: secret.as_bytes(value) for name, value in self.secrets.items()},
            **variables(self.run, runtime),
            # Where ranks meet: for whoever takes it from the environment, and for torchrun, whose default is one for all.
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.attempt_record["port"]),
            "PET_MASTER_PORT": str(self.attempt_record["port"]),
            "PET_NPROC_PER_NODE": str(self.ranks),
            # A torchrun of the user's own shows each rank its card alone, where it is new enough to know how.
            "PET_VIRTUAL_LOCAL_RANK": str(int(1 < self.ranks == len(runtime.get("gpus") or ()))),
            # torchrun's own grace, after which it kills its ranks; it would be half a minute whatever a step takes.
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(int(self._grace_s()) + 1),
            "LAUNCH_ATTEMPT": self.folder.path,
            "LAUNCH_SOCKET": socket_path,
        }

    def _heed(self, stop: _Stopping, leader: int) -> None:
        """Pass on a wish to stop, or the host's shutdown, and end what does not follow in time."""
        now = time.monotonic()
        if not stop.is_asked and (self.terminations or now >= stop.look_again):
            stop.look_again = now + WISH_S
            wish = self.run.read_wish()
            if wish == "run" and self._time_left_s() <= self._grace_s():
                wish = _TIME_LIMIT
            if wish != "run" or self.terminations:
                stop.ask(wish, self._grace_s())
                self._say("stopping")
                self._record("state", values={"state": "stopping", "wish": wish})
                if wish != "cancel" and self.failure is None:
                    self._signal_command(leader, signal.SIGTERM)
        elif stop.wish in ("stop", _TIME_LIMIT) and now >= stop.look_again:
            stop.look_again = now + WISH_S
            if self.run.read_wish() == "cancel":
                stop.ask("cancel", 0.0)
        if not stop.is_asked and self.failure is None and self.liveness.is_hung():
            self._give_up_hung()
        if now >= min(stop.deadline, self.kill_at) and not stop.is_forced:
            stop.is_forced = True
            self._signal_command(leader, signal.SIGKILL)

    def _grace_s(self) -> float:
        """How long the training may take to save when it is asked to end: as long as it was seen to take, if that is longer."""
        seen_s = BETWEEN_S + 2 * (self.liveness.step_s or 0.0) + 2 * self.save_s
        return max(float(self.plan.get("stop_grace_s", 30.0)), seen_s)

    def _time_left_s(self) -> float:
        """How long the run may still run, over all its attempts."""
        limit_s = _seconds(self.plan.get("time_limit_minutes"))
        ran_s = self.ran_before_s + time.monotonic() - self.began_s
        return float("inf") if limit_s is None else limit_s - ran_s

    def _give_up_hung(self) -> None:
        """Take the attempt for hung: ask every process that tells its stacks for them, and say what the others wait for."""
        silent_s = self.liveness.silent_s
        told = []
        for one in process.own_descendants():
            asked = process.catches(one.pid, signal.SIGUSR2) and process.send(one, signal.SIGUSR2)
            told.append(
                {"pid": one.pid, "state": one.letter, "waits": process.waits_for(one.pid), "stacks": asked}
            )
        self._record(
            "evidence", step=self.step, values={"hang": {"silent_s": round(silent_s, 1), "processes": told}}
        )
        self._give_up(
            {
                "class": "hang",
                "line": "step %s: nothing since for %.0f s" % (self.step, silent_s),
                "why": "no step, no word for %.0f s, where a step takes %.3g s"
                % (silent_s, self.liveness.step_s or 0.0),
                "mend": "see the stacks at the end of the log: what each process waits for",
                "since": None,
            },
            STACKS_GRACE_S,
        )

    def _end_leftovers(self, stop: _Stopping, hub: _Hub) -> list[dict[str, Any]]:
        """End whatever the command left below us, in what is left of the grace, while its pipes are read.

        What belongs to an attempt that was given up gets none: it would save what it has. Return what could not be ended.
        """
        grace_s = max(0.0, stop.deadline - time.monotonic()) if stop.is_asked else LEFTOVER_GRACE_S
        if self.failure is not None:
            grace_s = 0.0
        ending = process.Ending(process.own_descendants, "descendant", grace_s)
        while not ending.step():
            hub.turn(0.02)
        if ending.proofs or ending.remaining:
            self._record("evidence", values={"ended": ending.proofs, "remaining": ending.remaining})
        return ending.remaining

    def _signal_command(self, leader: int, number: int) -> None:
        """Signal the command itself; what it started hears of it from the command, as under a shell.

        torchrun kills its ranks half a minute after it has passed SIGTERM on, whatever they have to save. So ranks that
        heed it are told themselves, and torchrun ends when they have.
        """
        target = process.find(leader)
        targets = [target] if target is not None else []
        if number == signal.SIGTERM and self.ranks > 1:
            ranks = [one for one in process.descendants(leader) if one.parent == leader]
            heeding = [one for one in ranks if process.catches(one.pid, number)]
            targets = heeding or targets
        told = [dict(one.proof("child"), signal=int(number)) for one in targets if process.send(one, number)]
        if told:
            self._record("evidence", values={"signalled": told})

    # the end

    def _judge(self, status: int, stop: _Stopping, remaining: list[dict[str, Any]]) -> int | None:
        code, number = process.exit_of(status)
        evidence: dict[str, Any] = {"exit": code, "signal": number, "step": self.step}
        if remaining:
            evidence["remaining"] = remaining
        steps = self.plan.get("steps")
        is_at_end = self.marker == steps if steps is not None else not self.was_asked_to_end
        completed = self.is_marked and is_at_end
        if self.failure is None and not stop.is_asked:
            if code or number is not None:
                self._note_failure(self._diagnose(code, number))
            elif self.was_asked_to_end and not completed:  # by somebody else, and it has saved
                self._note_failure({**remedy.preempted(signal.SIGTERM), "line": None, "since": None})
        if self.failure is None and code == 0 and completed:
            return self._end("succeeded", "completed", evidence)
        wish = stop.wish
        if self.failure is not None:
            self._set_aside(self.failure)
            evidence.update(_told(self.failure))
            wish = self.run.read_wish()  # it may have come just now, and no attempt is to follow then
        if wish != "run" and remaining:
            return self._end("cancel-incomplete", "processes-remain", evidence)
        if wish != "run":
            return self._end("cancelled", _reason_of(wish), evidence)
        if self.failure is not None:
            return self._answer(self.failure, evidence)
        if stop.is_asked:
            self._say("resuming", "host-shutdown", evidence=evidence)
            return BRING_ME_BACK
        if self.uses_worker:
            evidence["marker"] = self.marker
            return self._end("failed", "no-completion-marker", evidence)
        return self._end("succeeded", "exit-only", evidence)

    def _diagnose(self, code: int | None, number: int | None) -> dict[str, Any]:
        """Return the failure of a command that ended badly."""
        from ..diagnosis.cause import (
            crash,  # the table of failures takes long to load, and most attempts need none
        )
        from ..diagnosis.diagnose import TAIL_BYTES

        now = oom.kills()
        ended = None if now is None or self.oom_kills is None else now - self.oom_kills
        failure = {"since": None, **crash(self.log.tail(TAIL_BYTES), code, number, ended)}
        if failure["class"] == "checkpoint-corrupt" and not self._has_gone_on():
            failure["since"] = self.chosen.step
        if failure["class"] == "gpu-busy-exclusive" and self.cards is not None:
            from . import card_admission

            failure["others"] = card_admission.others(self.run, self.cards)
        if failure["class"] == "disk-full":
            failure["elsewhere"] = not checkpoints.is_short_of_room(self.run.checkpoints)
        return failure

    def _has_gone_on(self) -> bool:
        """Whether steps were trained since the checkpoint that was begun from: that one could be read."""
        return self.step is not None and self.step > (self.chosen.step or 0)

    def _set_aside(self, failure: dict[str, Any]) -> None:
        """Put the checkpoints that a failure has spoilt where none is looked for."""
        if failure.get("since") is not None:
            names = checkpoints.set_aside(self.run.checkpoints, failure["since"])
            if names:
                self._record("evidence", values={"set-aside": names})

    def _make_room(self, failure: dict[str, Any], *, prunes: bool) -> None:
        """On a full disk remove what is torn, and with `prunes` old checkpoints too: to say anything wants room."""
        if failure["class"] == "disk-full":
            folder = self.run.checkpoints
            removed = checkpoints.tidy(folder, "checkpoints" in self._consumed_so_far())
            removed += checkpoints.prune(folder) if prunes else []
            if removed:
                self._record("evidence", values={"checkpoints": {"pruned": removed}})

    def _answer(self, failure: dict[str, Any], evidence: dict[str, Any]) -> int | None:
        """Say what follows a failure; return the agent's exit status, None where another attempt follows."""
        self._make_room(failure, prunes=False)
        verdict = self._decide(failure, self.history, self.begun + 1)
        if verdict.remedy is None or "remaining" in evidence:  # beside what is still there nothing may begin
            return self._end("failed", verdict.reason, {**evidence, "mend": verdict.mend})
        self._make_room(failure, prunes=True)
        self._record_remedy(self.attempt, failure, verdict.remedy)
        status = self._end("resuming", failure["class"], evidence, remedy=verdict.remedy)
        wants_new_container = failure["class"] == "no-gpu-in-container"
        if status or wants_new_container or (self.terminations and self.run.read_wish() == "run"):
            return BRING_ME_BACK  # the host goes down, or the container must
        return None

    def _decide(
        self, failure: dict[str, Any], earlier: list[tuple[remedy.Record, remedy.Record]], begun: int
    ) -> remedy.Verdict:
        """Return what follows a failure after `begun` attempts; what it has spoilt is set aside by now.

        `earlier` is what is on record of those before the one that failed.
        """
        consumed = self._consumed_so_far()
        name, newest = failure["class"], checkpoints.newest(self.run.checkpoints)
        return remedy.decide(
            remedy.FailedAttempt(
                failure=failure,
                plan=self.plan,
                changes=self.in_force.changes,
                consumed=consumed,
                may_begin_again=self._may_begin_again(),
                attempts_left=int(self.plan.get("attempts", 1)) - begun,
                checkpoint=newest if "resume" in consumed else None,
                tries=remedy.tries(earlier, name, newest),
                is_in_container=run_state.fate_of(self.run).is_in_image,
            )
        )

    def _end(self, state: str, reason: str, evidence: dict[str, Any], **more: Any) -> int:
        """Say how the attempt ended, as soon as there is room for it; return the agent's exit status."""
        values = {"state": state, "reason": reason, "evidence": evidence}
        self._record("state", values=values)
        while not (self.flush() and self._is_said(state, reason, evidence=evidence, **more)):
            if self.terminations:  # a full disk, on a host that goes down
                return BRING_ME_BACK
            time.sleep(NO_ROOM_S)
        return 0

    # what is written down

    def flush(self) -> bool:
        """Write what waits for room; return whether nothing does any more."""
        return all([self.events.flush(), self.log.flush()])

    def _is_said(self, state: str, reason: str | None, **more: Any) -> bool:
        try:
            self.events.sync()
            if self.secrets and state in TERMINAL:
                self._say(self.state, must=True)  # there is room, so the end is on disk once they are erased
                more["evidence"] = dict(more["evidence"], **self._erase_secrets())
            self._say(state, reason, must=True, **more)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            return False
        return True

    def _erase_secrets(self) -> dict[str, str]:
        """Erase the run's secrets; return as evidence that they could not be."""
        try:
            secret.erase(self.run)
        except OSError as error:
            return {"secrets": "not erased: %s" % error.strerror}
        return {}

    def _say(self, state: str, reason: str | None = None, *, must: bool = False, **more: Any) -> None:
        """Write the state; on a full disk it stays unsaid, unless it must be."""
        self.state = state
        try:
            self.folder.write_state(
                state,
                reason,
                attempt=self.attempt,
                began=self.has_begun,
                step=self.step,
                loss=self.redactor.redact(self.loss),
                consumed=self.redactor.redact(sorted(self.consumed)),
                checkpoint=self.checkpoint,
                save_s=self.save_s,
                rehearsed=self.is_rehearsed,
                failure=self.redactor.redact(self.failure),
                **self.redactor.redact(more),
            )
        except OSError as error:
            if must or error.errno not in NO_ROOM:
                raise

    def _record(self, kind: str, **fields: Any) -> None:
        self.write_events([dict(fields, kind=kind)])

    def _record_remedy(self, attempt: int, failure: dict[str, Any], found: dict[str, Any]) -> None:
        values = {"attempt": attempt, **_told(failure), **found}
        self._record("remedy", step=failure.get("step"), values=values)

    def write_events(self, events: list[dict[str, Any]]) -> None:
        """Append events, each with version, attempt, rank and host clock."""
        self._write_lines([self._line_of(event) for event in events])

    def _line_of(self, event: dict[str, Any]) -> str:
        line = {"rank": 0, "step": None, "time": time.time(), **event}
        return strict_json.encode({**line, "version": VERSION, "attempt": self.attempt})

    def _write_lines(self, lines: list[str]) -> None:
        text = "\n".join(lines)
        if self.redactor.is_in_json(text):
            text = "\n".join(
                strict_json.encode(self.redactor.redact(strict_json.decode(line))) for line in lines
            )
        self.events.append((text + "\n").encode())

    def take_worker_events(self, lines: list[bytes]) -> None:
        """Read the lines of a worker and write them down; a line that is no event is put down as evidence.

        A line that lacks nothing but version and attempt is not encoded again: a metric may come every 20 µs.
        """
        said_by_us = ',"version":%d,"attempt":%d}' % (VERSION, self.attempt)
        written = []
        for line in lines:
            try:
                text = line.decode()
                event = strict_json.decode(text)
            except (ValueError, RecursionError):
                event = None
            if not isinstance(event, dict) or not isinstance(event.get("kind"), str):
                shown = self.redactor.redact_bytes(line)[:200].decode("utf-8", "replace")
                written.append(self._line_of({"kind": "evidence", "values": {"not-an-event": shown}}))
                continue
            self._learn(event)
            if event["kind"] == "beat":  # a sign of life, once a second, and no news
                continue
            if text[-1] == "}" and event.keys() >= _FROM_A_WORKER and not _FROM_US & event.keys():
                written.append(text[:-1] + said_by_us)
            else:
                written.append(self._line_of(event))
        if written:
            self._write_lines(written)

    def _learn(self, event: dict[str, Any]) -> None:
        self.uses_worker = True
        self.liveness.note_sign()
        kind, step = event["kind"], event.get("step")
        values: Any = event.get("values")
        values = values if isinstance(values, dict) else {}
        if kind == "metric":
            self.has_worker_metrics = True
            self._note_step(step)
            self.loss = values.get("loss", self.loss)
            if "loss" in values and event.get("rank", 0) == 0:
                self._judge_loss(step, values["loss"])
        elif kind == "beat":
            self._note_step(step)
        elif kind == "stopping":
            self.was_asked_to_end = True
        elif kind == "checkpoint" and isinstance(step, int):
            self.checkpoint = step
            self.save_s = values["seconds"] if isinstance(values.get("seconds"), float) else self.save_s
            self._say(self.state)  # at once: what is tried again hangs on whether there was one in between
        elif kind == "begin" and isinstance(values.get("step"), int):
            self.has_trained = True
            self.doubtful_from = values["step"] + 1
        elif kind == "end":
            self.liveness.rest()
        elif kind == "done" and event.get("rank", 0) == 0:
            self.liveness.rest()
            self.is_marked = True
            self.marker = step if isinstance(step, int) else None
        elif kind == "consumed" and isinstance(values.get("knobs"), list):
            held = values.get("held") if isinstance(values.get("held"), list) else []
            told = [*map(str, values["knobs"]), *(_HELD + str(knob) for knob in held)]
            fresh = set(told) - self.consumed
            if fresh:
                self.consumed = self.consumed | fresh
                self._say(self.state)  # at once: a successor asks whether `resume` was consumed
        elif kind == "trip" and values.get("class") in _TRIPS:
            self._take_trip(step, values)
        elif kind == "evidence" and isinstance(values.get("proof"), dict) and self.proof is None:
            self.proof = values["proof"]
            if isinstance(self.proof.get("key"), dict):
                self._keep_evidence(None)

    def _note_step(self, step: Any) -> None:
        if isinstance(step, int):
            self.step = step
            self.has_trained = self.has_trained or step > 0
            self.liveness.note_step(step)

    def _take_trip(self, step: Any, values: dict[str, Any]) -> None:
        """Take the attempt for failed by its worker's word; without a first bad step no step is to be trusted."""
        if isinstance(step, int):
            self.step = step
        since = values.get("since")
        values = self.redactor.redact(values)  # before anything is cut: half a secret is one too
        name, why = values["class"], str(values.get("why") or "the worker's guard gave up")
        said = {"class", "why", "since", "key"}
        figures = ["%s %s" % pair for pair in values.items() if pair[0] not in said]
        self._give_up(
            {
                "class": name,
                "line": ("step %s: %s" % (step, ", ".join(figures)))[:MOST_CHARS],
                "why": (why[len(name) + 2 :] if why.startswith(name + ": ") else why)[:MOST_CHARS],
                "since": since if isinstance(since, int) and since >= 0 else 0,
            },
            TRIP_GRACE_S,
        )

    def _judge_loss(self, step: Any, loss: Any) -> None:
        """Take the attempt for failed where a script reports one lost loss after the other, and goes on."""
        if loss not in _NON_FINITE:
            self.lost_losses = 0
            self.doubtful_from = step if isinstance(step, int) else self.doubtful_from
            return
        self.lost_losses += 1
        if self.lost_losses == LOST_LOSSES:
            why = "the loss was not finite %d times running" % LOST_LOSSES
            line = "step %s: loss %s" % (step, loss)
            # The first lost loss shows what the step before it made of the weights.
            found = {"class": "nan-divergence", "line": line, "why": why, "since": self.doubtful_from}
            self._give_up(found, 0.0)

    def _give_up(self, failure: dict[str, Any], grace_s: float) -> None:
        """Take the attempt for failed, whatever its script says later; the first failure counts."""
        if self.failure is None:
            self.kill_at = time.monotonic() + grace_s
            self._note_failure(failure)

    def _note_failure(self, failure: dict[str, Any]) -> None:
        self.failure = {**failure, "step": self.step, "trained": self.has_trained or bool(self.step)}
        self._say(self.state)  # at once: should we die now, a successor answers it
        if failure["class"] in precision_evidence.FAILURES and "precision" in self._consumed_so_far():
            self._keep_evidence(failure["class"])

    def _keep_evidence(self, failed: str | None) -> None:
        """Keep on this host what the attempt shows about its precision; a rehearsal shows nothing about a card."""
        if self.is_rehearsed:
            return
        key = (self.proof or {}).get("key")
        if not isinstance(key, dict):
            packages = self.plan.get("environment") or self.plan.get("image") or {}
            precision = precision_evidence.precision_digest(self.attempt_record["precision"])
            key = {"torch": packages.get("torch"), "model": None, "trainable": None, "precision": precision}
        record = {
            "version": VERSION,
            "card": (self.plan.get("profile") or {}).get("name"),
            "driver": precision_evidence.driver(),
            **{name: self.plan.get(name) for name in ("model", "method", "job")},
            "key": key,
            "proof": self.proof,
            "failed": failed,
            "run": self.run.id,
            "time": time.time(),
        }
        folder = self.run.evidence(self.attempt_record["place_id"])
        try:
            precision_evidence.keep(folder, self.redactor.redact(record))
        except OSError as error:  # what it would have told later runs is not worth this one
            self._record("evidence", values={"not-kept": "%s: %s" % (folder, error.strerror)})

    def take_divergence(self, found: Divergence) -> None:
        """End an attempt whose log shows that its loss is lost, unless its own worker judges that."""
        if not self.has_worker_metrics:
            why = "the loss was not finite in two lines of the log running"
            self._give_up(
                {"class": "nan-divergence", "line": found.line, "why": why, "since": found.since}, 0.0
            )

    def take_log_metrics(self, found: list[tuple[int, dict[str, Any]]]) -> None:
        """Write down metrics read from the log, unless the script's worker sends its own."""
        if self.has_worker_metrics or not found:
            return
        self._note_step(found[-1][0])
        self.has_trained = True
        self.loss = found[-1][1].get("loss", self.loss)
        self.write_events([{"kind": "metric", "step": step, "values": values} for step, values in found])

    def beat(self) -> None:
        """Write the heartbeat: the host's monotonic clock, the step and the loss. On a full disk one is left out."""
        loss = self.redactor.redact(self.loss)
        now = time.monotonic()
        told = {"ran_s": now - self.began_s, "grace_s": self._grace_s(), "step": self.step, "loss": loss}
        record = {"monotonic_s": now, **told}
        try:
            with open(self.folder.heartbeat, "w", encoding="ascii") as file:
                file.write(strict_json.encode(record) + "\n")
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
        self.flush()


class _Stopping:
    """Whether the training was asked to end, by which wish, and until when it may take."""

    def __init__(self) -> None:
        self.wish = "run"
        self.is_asked = False
        self.is_forced = False
        self.deadline = float("inf")
        self.look_again = 0.0

    def ask(self, wish: str, grace_s: float) -> None:
        self.wish = wish
        self.is_asked = True
        self.deadline = time.monotonic() + (0.0 if wish == "cancel" else grace_s)


class _Hub:
    """The streams of one attempt: the training's output, and a connection from each of its processes."""

    def __init__(
        self,
        supervisor: Supervisor,
        selector: selectors.BaseSelector,
        listener: socket.socket,
        child: subprocess.Popen[bytes],
    ) -> None:
        assert child.stdout is not None  # noqa: S101 - asked for with PIPE
        self._supervisor = supervisor
        self._selector = selector
        self._listener = listener
        self._output = child.stdout
        self._redaction = secret.Redaction(supervisor.redactor)
        self._scanner = LogScanner()
        self._rests: dict[socket.socket, bytearray] = {}
        self._next_beat = 0.0
        os.set_blocking(self._output.fileno(), False)
        listener.setblocking(False)
        selector.register(listener, selectors.EVENT_READ)
        selector.register(self._output, selectors.EVENT_READ)

    def turn(self, timeout_s: float) -> bool:
        """Wait for something to arrive and write it down; return whether anything did."""
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + HEARTBEAT_S
            self._supervisor.beat()
        ready = self._selector.select(timeout_s)
        for key, _ in ready:
            if key.fileobj is self._listener:
                connection, _address = self._listener.accept()
                connection.setblocking(False)
                self._rests[connection] = bytearray()
                self._selector.register(connection, selectors.EVENT_READ)
            elif key.fileobj is self._output:
                self._take_output()
            elif isinstance(key.fileobj, socket.socket):
                self._take_events(key.fileobj)
        return bool(ready)

    def drain(self) -> None:
        """Take what is still in the pipes. Whoever might write there has been ended; a bound holds all the same."""
        deadline = time.monotonic() + DRAIN_S
        while time.monotonic() < deadline and self.turn(0.0):
            pass
        self._write_output(self._redaction.finish())
        for connection, rest in self._rests.items():
            if rest:
                self._supervisor.take_worker_events([bytes(rest)])
            connection.close()

    def _take_output(self) -> None:
        piece = self._output.read(1 << 16)
        if piece:
            self._supervisor.liveness.note_sign()
            self._write_output(self._redaction.feed(piece))
        elif piece == b"":
            self._selector.unregister(self._output)
            self._write_output(self._redaction.finish())
            self._scan(b"\n")

    def _write_output(self, piece: bytes) -> None:
        self._supervisor.log.append(piece)
        self._scan(piece)

    def _scan(self, piece: bytes) -> None:
        self._supervisor.take_log_metrics(self._scanner.feed(piece))
        if self._scanner.divergence is not None:
            self._supervisor.take_divergence(self._scanner.divergence)

    def _take_events(self, connection: socket.socket) -> None:
        rest = self._rests[connection]
        try:
            piece = connection.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:  # reset by a process that was killed: what it sent whole has been taken
            piece = b""
        rest += piece
        lines = bytes(rest).split(b"\n") if b"\n" in piece else [bytes(rest)]
        if len(lines) > 1:
            self._rests[connection] = bytearray(lines[-1])
            self._supervisor.take_worker_events([line for line in lines[:-1] if line])
        if not piece or len(self._rests[connection]) > MAX_EVENT_BYTES:
            self._selector.unregister(connection)
            del self._rests[connection]
            connection.close()


def _previous(last: Folder | None, seen: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return how the folder before this one ended; with what our parent saw, where that was without a word."""
    if last is None or read_json(last.attempt).get("kind") == "prepare":
        return None
    state = last.read_state()
    told = {name: state.get(name) for name in ("state", "reason", "step")}
    return {"folder": last.number, **told, **(seen or {})}


def _told(failure: dict[str, Any]) -> dict[str, Any]:
    """Return what is put on record of a failure beside how its attempt ended."""
    return {name: failure.get(name) for name in ("class", "line", "why")}


def _reason_of(wish: str) -> str:
    return {"cancel": "cancelled-by-user", _TIME_LIMIT: "time-limit"}.get(wish, "stopped-by-user")


def _free_port() -> int:
    """Return a port that is free now; who comes second finds it taken, and the next attempt has another."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _seconds(minutes: Any) -> float | None:
    return None if minutes is None else 60.0 * float(minutes)


def _ran_s(folder: Folder) -> float:
    """Return how long an earlier attempt ran, by its last heartbeat."""
    ran_s = read_json(folder.heartbeat).get("ran_s")
    return float(ran_s) if isinstance(ran_s, (int, float)) else 0.0
