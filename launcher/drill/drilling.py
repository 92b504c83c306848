"""Launch a small job on a host several times, cause a different fault each time, and judge the run from outside.

The evidence for a row is the job's ledger, which lies outside the run, and the output of `ps`, `sha256sum`
and `docker` in a plain shell on the host.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher.backends.registry import backend_of
from launcher.base.delayed_interrupts import HeldInterrupts
from launcher.base.resources import data_folder
from launcher.copy.local_copy import LocalCopy
from launcher.copy.request import Request
from launcher.copy.runs_folder import runs_folder
from launcher.drill import drill_judging as judging
from launcher.drill import host_shell
from launcher.drill.drill_faults import DrillPlace, bring_about
from launcher.drill.drill_outcome import By, Drill, DrillResult, Fault, FaultOutcome, Planned
from launcher.errors import HostError, LaunchError, RefusedError
from launcher.planning.placement import runtime as choose_runtime
from launcher.runs.cleaning import free, remove_here
from launcher.runs.follow.following import follow
from launcher.runs.follow.view import NullStage, NullView
from launcher.runs.launch.launching import Started, launch
from launcher.runs.launch.resolved_request import understand
from launcher.runs.resume.recovering import TO_RECOVER, RecoverRequest, RecoveryOutcome, recover_on
from launcher.runs.run_client import connect, open_client
from launcher.runs.run_stopping import stop
from launcher.transport.client.host_client import HostClient
from launcher.values.plan import Finding
from launcher.values.record import RunState, is_terminal

if TYPE_CHECKING:
    from launcher.runs.follow.view import Stage, View
    from launcher.values.host import Host

LIMIT_S = 120.0
"""Seconds beyond the expected length after which a run is stopped."""
MAX_RECOVERIES = 3
LEAVE_S = 10
"""Seconds after a run's end in which its last processes may still exist."""
JOB = "drill.toml"


class DrillRequest(NamedTuple):
    """The request for a drill: the host, the profile, the runtime and the faults.

    None and () mean the defaults.
    """

    host: str | None = None
    profile: str | None = None
    runtime: str | None = None
    faults: Sequence[str] = ()


class Prepared(NamedTuple):
    """A drill before its first row.

    `client` is an open client that observes the host. `planned` are the faults to cause. `unable` gives the
    reason for each fault that cannot be caused there.
    """

    client: HostClient
    host: Host
    runtime: str
    planned: Sequence[Planned]
    unable: dict[str, str]
    request: DrillRequest


@contextmanager
def prepared(request: DrillRequest, view: View) -> Iterator[Prepared]:
    """Connect to the host and find the possible faults. Nothing is uploaded. Raises UsageError and HostError."""
    resolved = understand(_job(request, "", Planned(Fault("none", "", By.JOB))))
    backend = backend_of(resolved.host)
    backend.check_has(resolved.host, "drill")
    with view.stage("connect") as stage:
        client = connect(resolved.host)
        stage.text = client.about
    with client:
        facts = backend.probing.probe(client, resolved.host, resolved.job)
        runtime = choose_runtime(resolved.profiles[0], resolved.host, resolved.job, facts)
        planned = judging.chosen(request.faults, runtime)
        yield Prepared(client, resolved.host, runtime, planned, _unable(client), request)


def drill(ready: Prepared, view: View, rows: list[FaultOutcome]) -> Drill:
    """Run all rows, one after the other. Each run is removed before the next begins.

    Each row is appended to `rows` when it is done, so that an interrupt does not lose it.
    """
    folder = _evidence_folder(ready.host.name)
    for planned in ready.planned:
        with view.stage(planned.name) as stage:
            if (why := ready.unable.get(planned.fault.name)) is not None:
                row = _without(planned, DrillResult.NOT_RUN, why)
            else:
                row = _row(ready, planned, folder, stage)
            stage.text = summary(row) if row.result == DrillResult.OK else None
        if row.result != DrillResult.OK:
            view.finding(Finding(level="note", code="drill", message=f"{planned.name} {summary(row)}"))
        rows.append(row)
    return Drill(ready.host.name, ready.runtime, tuple(rows), str(folder))


def _evidence_folder(host: str) -> Path:
    """Make the folder for a drill's ledgers. Drills that begin in the same second get different folders."""
    drills, name = runs_folder() / "drills", f"{host}-{time.strftime('%y%m%d-%H%M%S')}"
    drills.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = drills / (name if number == 1 else f"{name}-{number}")
        with suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise AssertionError("unreachable")


def summary(row: FaultOutcome) -> str:
    """Return a row in a few words."""
    if row.result != DrillResult.OK:
        return f"{row.result.replace('-', ' ')}: {'; '.join(row.problems)}"
    words = [row.planned.fault.expected]
    if row.steps_again:
        words.append(f"{row.steps_again} step{'s' * (row.steps_again != 1)} again")
    if row.silent_s is not None:
        words.append(f"{row.silent_s:.1f} s without a step")
    return ", ".join(words)


def _without(planned: Planned, result: DrillResult, why: str, run: str | None = None) -> FaultOutcome:
    return FaultOutcome(planned, result, run, problems=(why,))


def _job(request: DrillRequest, token: str, planned: Planned) -> Request:
    """Return the launch request of a row: the small job, with the token on its command line."""
    fault = planned.fault.name if planned.fault.by == By.JOB else "none"
    settings = (
        f'command=["python", "drill.py", "{token}"]',
        f'settings.ledger="{token}"',
        f'settings.fault="{fault}"',
        f"settings.at={planned.at}",
        "on_end=[]",  # the project's own hook is not called for these runs
    )
    return Request(
        host=request.host,
        profile=request.profile or "cpu",
        runtime=request.runtime,
        job=str(data_folder("jobs") / JOB),
        settings=settings,
        is_sure=True,
    )


def _unable(client: HostClient) -> dict[str, str]:
    """Return the faults that cannot be caused on a host, with the reason."""
    if "able" in host_shell.run(client, "unshare --user --map-root-user --mount true && echo able"):
        return {}
    return {"folder-full": "this user may make no namespace there (unshare --user --mount)"}


def _row(ready: Prepared, planned: Planned, folder: Path, stage: Stage) -> FaultOutcome:
    """Launch the job, cause the fault, follow the run to its end, judge it, and remove it."""
    token = f"drill-{secrets.token_hex(6)}"
    try:
        started = launch(_job(ready.request, token, planned), NullView())
    except RefusedError as error:
        return _without(planned, DrillResult.NOT_RUN, " ".join(str(error).split()))
    except LaunchError as error:  # the whole message: its later lines matter if the run has begun
        return _without(planned, DrillResult.FAILED, " ".join(str(error).split()))
    place = None
    try:
        try:
            path = started.client.runs.location(started.local_copy.run).path
            place = DrillPlace(path, f"{os.path.dirname(os.path.dirname(path))}/cache/{token}", token)
        finally:
            number = started.interrupts.release()
        if number is not None:
            signal.raise_signal(number)
        stage.progress(f"run {started.local_copy.short}")
        state, problems = _cause_fault(ready, planned, started, place)
        row = _judged(ready.client, planned, started.local_copy, place, state, problems, folder)
    except LaunchError as error:
        row = _without(planned, DrillResult.FAILED, str(error).splitlines()[0], started.local_copy.run)
    except BaseException as error:  # Ctrl-C: the note names a run that could not be removed
        if (problem := _clear_away(started, place, keeps_local_copy=False)) is not None:
            error.add_note(problem)
        raise
    stage.progress(f"removing {started.local_copy.short}")
    problem = _clear_away(started, place, keeps_local_copy=row.result == DrillResult.FAILED)
    return (
        row if problem is None else row._replace(result=DrillResult.FAILED, problems=(*row.problems, problem))
    )


def _cause_fault(
    ready: Prepared, planned: Planned, started: Started, place: DrillPlace
) -> tuple[RunState, list[str]]:
    """Follow a run while its fault happens, and recover it if needed.

    Return its final state and the problems.
    """
    fault = planned.fault
    most_s = fault.seconds + LIMIT_S
    view = _Following(time.monotonic() + most_s)
    problems: list[str] = []
    limit = _Limit(ready.client, place.run, most_s)
    with limit, ThreadPoolExecutor(1) as pool:
        hurting = None
        if fault.by != By.JOB:
            hurting = pool.submit(bring_about, ready.client, planned, place, ready.runtime, started.client)
        state = _followed_to_its_end(started, view, problems)
        if hurting is not None and (problem := hurting.result()) is not None:
            problems.append(problem)
    if limit.is_reached:
        problems.append(f"it had not ended after {most_s:.0f} s, and was stopped")
    if fault.by == By.LINK and not view.losses:
        problems.append("the client did not notice that its connection was cut")
    return state, problems


def _followed_to_its_end(started: Started, view: NullView, problems: list[str]) -> RunState:
    """Follow a run. Recover it as a user would whenever it waits or is interrupted."""
    host, local_copy = started.host, started.local_copy
    state = follow(host, local_copy, view, started.client)
    for _ in range(MAX_RECOVERIES):
        if state.state not in TO_RECOVER:
            break
        with open_client(host, local_copy) as client:
            found = recover_on(client, local_copy, RecoverRequest(is_sure=True), view)
        if found.outcome != RecoveryOutcome.RECOVERED:
            problems.append(f"not recovered: {found.words or found.outcome}")
            break
        state = follow(host, local_copy, view)
    return state


class _Following(NullView):
    """Counts lost connections.

    After `until`, a time of the monotonic clock, it raises the error of a lost connection.
    """

    def __init__(self, until: float) -> None:
        self._until = until

    def lost(self, error: HostError, tries: int, wait_s: float) -> None:
        super().lost(error, tries, wait_s)
        if time.monotonic() > self._until:
            raise error


class _Limit:
    """Stops a run that takes too long. Use it in a `with`."""

    def __init__(self, client: HostClient, run: str, seconds: float) -> None:
        self.is_reached = False
        self._client, self._run = client, run
        self._timer = threading.Timer(seconds, self._reach)
        self._timer.daemon = True

    def __enter__(self) -> None:
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    def _reach(self) -> None:
        self.is_reached = True
        with suppress(LaunchError):
            self._client.runs.wish(self._run, "cancel", force=True)


def _judged(
    client: HostClient,
    planned: Planned,
    local_copy: LocalCopy,
    place: DrillPlace,
    state: RunState,
    problems: list[str],
    folder: Path,
) -> FaultOutcome:
    """Collect the evidence from outside, keep the ledger, and judge the run.

    The local copy is not downloaded again: it is compared as it was at the end of following.
    """
    said = host_shell.run(client, f"cat {shlex.quote(f'{place.ledger}/ledger.jsonl')}")
    (folder / f"{planned.name}.jsonl").write_text(said)
    seen = judging.RunObservation(
        ledger=judging.read_ledger(said),
        model=host_shell.run(client, f"cat {shlex.quote(f'{place.folder}/work/artifacts/model')}"),
        state=state.state,
        reason=state.reason,
        differing=_differing(client, local_copy, place),
        left=_left(client, place),
    )
    judgement = judging.judge(planned, seen)
    problems = [*problems, *judgement.problems]
    found, remedy = _on_record(local_copy)
    return FaultOutcome(
        planned,
        DrillResult.FAILED if problems else DrillResult.OK,
        local_copy.run,
        found,
        remedy,
        judgement.lost,
        judgement.silent_s,
        tuple(seen.left),
        tuple(problems),
    )


def _differing(client: HostClient, local_copy: LocalCopy, place: DrillPlace) -> list[str]:
    """Return the files of the record and the job's artifacts whose local copy differs from the host's."""
    script = f"""
cd {shlex.quote(place.folder)} || exit
for file in record/[0-9]*/attempt.json record/[0-9]*/state.json record/[0-9]*/events.jsonl record/[0-9]*/log.txt work/artifacts/model; do
    [ -f "$file" ] && {{ sha256sum "$file" || shasum -a 256 "$file"; }}
done"""
    lines = [line.split(None, 1) for line in host_shell.run(client, script).splitlines()]
    differing = [] if lines else ["the host's shell finds no file of the record"]
    for digest, path in (line for line in lines if len(line) == 2):
        here = path.removeprefix("record/").removeprefix("work/")
        if (
            not local_copy.files.is_file(here)
            or hashlib.sha256(local_copy.files.read(here)).hexdigest() != digest
        ):
            differing.append(path)
    return differing


_LOOK = """
look() {
    inside=" $(grep -laF "$RUN" /proc/[0-9]*/environ | tr -c '0-9' ' ') "
    ps -eww -o pid=,args= | SELF=$$ INSIDE="$inside" TOKEN="$TOKEN" RUN="$RUN" awk '
        index($0, ENVIRON["TOKEN"]) || index($0, ENVIRON["RUN"]) || index(ENVIRON["INSIDE"], " " $1 " ") { print "process " $0 }
        $1 == ENVIRON["SELF"] { sees = 1 }
        END { if (!sees) print "its processes cannot be seen: ps does not show all" }
    ' || echo "its processes cannot be seen: awk does not work"
    squeue --me --noheader --name="${RUN#*-}" --format='job %i %T'
    docker ps $ALL --format '{{.Names}} {{.Status}}' | grep -F "$RUN" | sed 's/^/container /'
    if [ -n "$ALL" ]; then ls -d "$FOLDER" "$LEDGER"; fi
    ls -d "${TMPDIR:-/tmp}"/launch-agent-*-"${RUN##*-}"-* | sed 's/^/socket folder /'
}
turns=0
while left=$(look); [ -n "$left" ] && [ $turns -lt $TURNS ]; do
    turns=$((turns + 1))
    sleep 0.2
done
[ -z "$left" ] || echo "$left"
"""


def _left(client: HostClient, place: DrillPlace, *, is_removed: bool = False) -> list[str]:
    """Return the processes, containers and socket folders that a run left LEAVE_S seconds after its end.

    If the processes cannot be listed, return a line that says so. A process belongs to the run if its command line
    names the run or, on a host with /proc, if its variables do.

    An ended container stays until its run is removed. After that (`is_removed`), containers and files count
    as left too.
    """
    variables = host_shell.assigned(
        TOKEN=place.token,
        RUN=place.run,
        FOLDER=place.folder,
        LEDGER=place.ledger,
        ALL="--all" if is_removed else "",
        TURNS=str(LEAVE_S * 5),
    )
    return host_shell.run(client, variables + _LOOK, LEAVE_S + 60).splitlines()


def _on_record(local_copy: LocalCopy) -> tuple[str | None, str | None]:
    """Return the first failure in a run's record, and its remedy."""
    for folder in local_copy.files.numbered():
        state, begun = (local_copy.files.read_json(f"{folder}/{name}.json") for name in ("state", "attempt"))
        for report in (state.get("failure"), begun.get("previous")):
            if not isinstance(report, dict):
                continue
            if found := report.get("class") or report.get("reason"):
                remedy = state.get("remedy") if report is state.get("failure") else begun.get("remedy")
                text = remedy.get("text") if isinstance(remedy, dict) else None
                resumed = begun.get("checkpoint")
                step = resumed.get("step") if isinstance(resumed, dict) else None
                return str(found), str(text) if text else f"resumed from step {step}" if step else None
    return None, None


def _clear_away(started: Started, place: DrillPlace | None, *, keeps_local_copy: bool) -> str | None:
    """End a run. Remove it and its ledger from the host, and its local copy here. Return the problem, if any.

    Ctrl-C and SIGTERM are held until it is done, and are raised afterwards.
    """
    held = HeldInterrupts()
    try:
        started.client.close()
        return _cleared_away(started, place, keeps_local_copy=keeps_local_copy)
    finally:
        if (number := held.release()) is not None:
            signal.raise_signal(number)


def _cleared_away(started: Started, place: DrillPlace | None, *, keeps_local_copy: bool) -> str | None:
    local_copy = started.local_copy
    try:
        with open_client(started.host, local_copy) as client:
            state = local_copy.state()
            if state is None or not is_terminal(state.state):
                stop(client, local_copy.run, now=True, grace_s=0.0)
            problem = free(client, local_copy, "all", NullStage()).problem
            if place is not None:
                host_shell.run(client, f"rm -rf {shlex.quote(place.ledger)}")
                if problem is None and (left := _left(client, place, is_removed=True)):
                    problem = f"not removed: {', '.join(left)}"
        if problem is None and not keeps_local_copy:
            remove_here(local_copy, force=True)
        return problem
    except LaunchError as error:
        return f"not removed: {str(error).splitlines()[0]}   launch rm --force {local_copy.short}"
