"""What is asked of runs that are there: list, attach, stop, execute."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from launcher.errors import EngineError, HostError, LaunchError, RunError, UnknownNameError
from launcher.hosts import Agent, connect
from launcher.runs import resolve
from launcher.runs.evidence import diagnosis, why_silent
from launcher.runs.mirror import RUN_ID, Mirror, find, mirrors, runs_folder
from launcher.values.engine_access import EngineWay
from launcher.values.host import Host
from launcher.values.image import BuildOptions
from launcher.values.record import State, Summary, is_terminal

if TYPE_CHECKING:
    from launcher.runs.view import Stage, View
    from launcher.runtimes.docker.runtime import Docker

MOST_HOSTS_AT_ONCE = 16
STOP_SLACK_S = 30.0


class Row(NamedTuple):
    """One line of `launch ps`. `problem` is why the host was not asked, or could not be."""

    host: str
    values: dict[str, Any]
    problem: str | None = None


def listing(host_name: str | None) -> list[Row]:
    """Return the runs of this client, or all runs of one host; hosts with live runs are asked, all at once.

    A host that does not answer costs nothing but its rows' freshness: they say so.
    """
    if host_name is not None:
        host = resolve.host(host_name)
        with connect(host) as agent:
            return [Row(host.name, values) for values in runs_of(agent)]
    rows: list[Row] = []
    open_runs: dict[str, tuple[Host, list[Mirror]]] = {}
    for mirror in mirrors():
        try:
            host = mirror.host()
        except RunError as error:
            rows.append(Row("-", _remembered(mirror), str(error).splitlines()[0]))
            continue
        if is_terminal(mirror.state().get("state")):
            rows.append(Row(host.name, _remembered(mirror)))
        else:
            open_runs.setdefault(host.model_dump_json(), (host, []))[1].append(mirror)
    with ThreadPoolExecutor(MOST_HOSTS_AT_ONCE) as pool:
        for found in pool.map(lambda pair: _ask(*pair), open_runs.values()):
            rows += found
    return sorted(rows, key=lambda row: row.values.get("time") or 0)


def runs_of(agent: Agent, *wanted: str) -> list[dict[str, Any]]:
    """Return the summaries of a host's runs, or of those wanted. What is none is left out."""
    told = agent.call("runs", runs=list(wanted) or None).values.get("runs")
    found = [_summary(one) for one in told] if isinstance(told, list) else []
    return [one.model_dump() for one in found if one is not None and RUN_ID.fullmatch(one.run)]


def _summary(told: object) -> Summary | None:
    try:
        return Summary.lenient(told)
    except ValidationError:
        return None


def _ask(host: Host, asked: list[Mirror]) -> list[Row]:
    try:
        with connect(host) as agent:
            found = {values["run"]: values for values in runs_of(agent, *(mirror.run for mirror in asked))}
    except LaunchError as error:
        problem = str(error).splitlines()[0]
        return [Row(host.name, _remembered(mirror), problem) for mirror in asked]
    gone = "gone: the host has no such run"
    return [
        Row(host.name, found[mirror.run])
        if mirror.run in found
        else Row(host.name, _remembered(mirror), gone)
        for mirror in asked
    ]


def _remembered(mirror: Mirror) -> dict[str, Any]:
    plan, state, parent = mirror.plan(), mirror.state(), mirror.parent()
    return {
        "run": mirror.run,
        "state": state.get("state", State.PREPARING),
        "reason": state.get("reason"),
        "attempt": state.get("attempt"),
        "step": state.get("step"),
        "steps": plan.steps,
        "loss": state.get("loss"),
        "job": plan.job,
        "card": plan.card,
        "evidence": state.get("evidence") if diagnosis(state.get("evidence")) else None,
        "rehearsed": plan.rehearsed,
        "parent": parent.model_dump() if parent is not None else None,
        "time": mirror.launched(),
    }


def locate(word: str, host_name: str | None) -> tuple[Host, Mirror]:
    """Return the host and the mirror of the run that a word means; with a host named, of its runs.

    Raises UnknownNameError, or UsageError where the word means several.
    """
    if host_name is None:
        mirror = Mirror(find(word, [mirror.run for mirror in mirrors()]), runs_folder())
        return mirror.host(), mirror
    host = resolve.host(host_name)
    with connect(host) as agent:
        found = sorted(runs_of(agent), key=lambda values: values.get("time") or 0)
    try:
        run = find(word, [values["run"] for values in found])
    except UnknownNameError as error:
        raise UnknownNameError(f"{host.name}: {error}") from error
    mirror = Mirror(run, runs_folder())
    began = next(values.get("time") for values in found if values["run"] == run)
    mirror.bind(host, began if isinstance(began, float) else None)
    return host, mirror


def resume_if_interrupted(agent: Agent, mirror: Mirror, view: View) -> bool:
    """Go on with a run that was interrupted: its leftovers are ended by proof, its agent starts again.

    So does one that waits for a card, if it is free by now; else it is said who has it. An image that must be made again
    is shown as a stage. Return whether it goes on by this.
    """
    values = runs_of(agent, mirror.run)
    if not values:
        raise RunError(f"{agent.host} has no run {mirror.run}: removed there?")
    if values[0].get("state") not in (State.INTERRUPTED, State.WAITING):
        return False
    way = values[0].get("engine")
    if way is None:
        return agent.call("resume", run=mirror.run, deadline_s=60.0).values.get("state") != State.WAITING
    from launcher.runs import build_settings
    from launcher.runs.following import refresh

    refresh(agent, mirror)
    plan = mirror.whole_plan()
    settings = build_settings.read(mirror.host(), os.environ)
    with contextlib.ExitStack() as shown, open_docker(agent, way, settings) as docker:
        stages: list[Stage] = []

        def say(step: str) -> None:
            if not stages:  # only an image that is not there has anything to say
                stages.append(shown.enter_context(view.stage("image")))
                stages[0].text = plan.image.name if plan.image else None
            stages[0].progress(step)

        return docker.resume(mirror.run, plan, (values[0].get("attempt") or 1) + 1, say)


def open_docker(agent: Agent, way: dict[str, Any], settings: BuildOptions | None = None) -> Docker:
    """Return the runtime of a run that is in a container: `way` is its summary's `engine`. Raises EngineError."""
    from launcher.runtimes.docker.runtime import Docker  # docker-py costs 0.15 s: only those who need it pay

    return Docker(agent, EngineWay.model_validate(way), settings)


def stop(agent: Agent, run: str, *, now: bool, grace_s: float) -> Row:
    """Ask a run to stop, or to stop now, and wait until it has and nothing of it is left; return its last summary.

    What is left all the same is the row's `problem`. A run that has ended without its engine's help has ended: the row's `problem` says what the engine's was.
    Raises RunError when the run still lives after its grace and some slack, EngineError when nobody can say.
    """
    short = run.rpartition("-")[2]
    problem: EngineError | None = None
    wish = "cancel" if now else "stop"
    agent.call("wish", run=run, wish=wish, deadline_s=60.0)
    values = next(iter(runs_of(agent, run)), {})
    # At least as long as a step and a save were seen to take.
    grace_s = 0.0 if now else max(grace_s, values.get("grace_s") or 0.0)
    if values.get("engine") is not None and not is_terminal(values.get("state")):
        try:
            with open_docker(agent, values["engine"]) as docker:
                docker.stop(run, grace_s)
        except EngineError as error:
            problem = error
        agent.call("wish", run=run, wish=wish, deadline_s=60.0)  # a container that was killed wrote no end
    deadline = time.monotonic() + grace_s + STOP_SLACK_S
    while time.monotonic() < deadline:
        values = next(iter(runs_of(agent, run)), {})
        if not values or is_terminal(values.get("state")):
            words = [str(problem).splitlines()[0]] if problem else _still_there(agent, run, values)
            return Row(agent.host, values, "; ".join(words) or None)
        if problem is not None and why_silent(values):
            break
        time.sleep(0.1)
    if problem is not None:
        mend = f"without it   launch stop --now {short}"
        raise EngineError(agent.host, str(problem) if now else f"{problem}\n  {mend}") from problem
    raise RunError(
        f"{run} on {agent.host} has not ended yet\n  now   launch stop --now {run}     look   launch ps"
    )


def _still_there(agent: Agent, run: str, values: dict[str, Any]) -> list[str]:
    """Return what is left of a run that has ended, once its agent has had its moment to leave: it may hold the card."""
    left = agent.call("remains", run=run, deadline_s=60.0).values.get("left") if values else None
    return [f"still there: {one}" for one in left] if isinstance(left, list) else []


def execute(agent: Agent, run: str, command: Sequence[str], take: Callable[[int, bytes], None]) -> int:
    """Run a command beside a run; `take` gets what it prints as (1 or 2, bytes). Return its exit code, as a shell tells it.

    A run in a container has it run in there. Ctrl-C ends it, and returns 130 when it has ended; a second one does not
    wait for that. Raises HostError.
    """
    found = runs_of(agent, run)
    way = found[0].get("engine") if found else None
    with contextlib.ExitStack() as stack:
        if way is not None:
            docker = stack.enter_context(open_docker(agent, way))
            agent = stack.enter_context(docker.agent_inside(run))
        interrupts = stack.enter_context(_interrupt_noted())
        values = agent.execute(
            "exec", b"", take, lambda: bool(interrupts), run=run, command=list(command)
        ).values
    if interrupts:
        return 128 + signal.SIGINT
    code, number = values.get("exit"), values.get("signal")
    if isinstance(number, int):
        return 128 + number
    if not isinstance(code, int):
        raise HostError(agent.host, f"{agent.host}: the agent did not say how the command ended")
    return code


@contextlib.contextmanager
def _interrupt_noted() -> Iterator[list[int]]:
    """Note the first Ctrl-C; the second one interrupts."""
    noted: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def note(number: int, _frame: object) -> None:
        noted.append(number)
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)
