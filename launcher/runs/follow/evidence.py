"""Put a host's recorded evidence about the end of a run into words. Any value is accepted."""

from __future__ import annotations

from typing import Any, NamedTuple

from launcher.base.json_file import JsonObject
from launcher.values.record import Event, Reason, RunState, State, Summary

KILLED = 137
SIGKILL = 9
MAX_CHARS = 100  # the length of a name from a host
_GIVEN_UP = ("nan-divergence", "not-learning", "hang")
"""The failure classes of attempts that the agent gives up and ends with SIGKILL."""
_DIAGNOSIS = ("line", "why", "mend")
_LAST_LINE = "this is its last line"
"""The last words of an explanation that refers to the log's last line."""
MAX_LINE_LENGTH = 160


def words(evidence: object) -> list[str]:
    """Return evidence as short clauses."""
    if not isinstance(evidence, dict):
        return []
    other = {
        key: value
        for key, value in evidence.items()
        if key
        not in (
            "class",
            "doubt",
            "lingered",
            "on_end",
            "silent",
            "log",
            "own_checkpoint",
            "used",
            *_DIAGNOSIS,
        )
    }
    if evidence.get("class") in _GIVEN_UP and other.get("signal") == SIGKILL:
        other = {**other, "signal": None, "launcher": "ended it (signal 9)"}
    return [clause for key, value in other.items() if value is not None for clause in _clauses(key, value)]


def diagnosis(evidence: object) -> dict[str, str]:
    """Return the line that proves a failure's class, its cause and its fix; only those that were recorded."""
    if not isinstance(evidence, dict) or not evidence.get("class"):
        return {}
    return {name: str(evidence[name]) for name in _DIAGNOSIS if evidence.get(name)}


def why_failed(evidence: object) -> str | None:
    """Return the cause of a failure of a known class in one line.

    If the words refer to the log's last line, that line is appended, cut to fit. If the script cannot start
    again, the end of its last attempt comes first.
    """
    known = diagnosis(evidence)
    why, line = known.get("why"), " ".join(known.get("line", "").split())
    if why is None or not line:
        return why
    line = line if len(line) <= MAX_LINE_LENGTH else line[: MAX_LINE_LENGTH - 1] + "…"
    if isinstance(evidence, dict) and evidence.get("class") == Reason.NOT_RESTARTABLE:
        return f"{line}; {why}"
    return f"{why}: {line}" if why.endswith(_LAST_LINE) else why


def doubt(evidence: object) -> str | None:
    """Return why a succeeded run may not have done its work, with the line that shows it; `None` if none is recorded."""
    recorded = evidence.get("doubt") if isinstance(evidence, dict) else None
    if not isinstance(recorded, dict):
        return None
    line = f": {recorded['line']}" if recorded.get("line") else ""
    return f"{recorded.get('class')}{line} ({recorded.get('why')})"


def lingered(evidence: object) -> str | None:
    """Return the note that a process outlived its script and was terminated; `None` if there is none."""
    words = evidence.get("lingered") if isinstance(evidence, dict) else None
    return words if isinstance(words, str) else None


class OwnCheckpoint(NamedTuple):
    """A checkpoint that a script saved itself, on the run's host: its path below the code, and whether a Trainer saved it."""

    path: str
    is_trainers: bool


def own_checkpoint(evidence: object) -> OwnCheckpoint | None:
    """Return the checkpoint that the script of an ended run saved itself; `None` if none is recorded."""
    own = evidence.get("own_checkpoint") if isinstance(evidence, dict) else None
    if not isinstance(own, dict) or not isinstance(path := own.get("path"), str):
        return None
    return OwnCheckpoint(path[:MAX_CHARS], own.get("is_trainers") is True)


def used(evidence: object) -> str | None:
    """Return how much of its Slurm job's resources a run has used; `None` if that is not recorded."""
    recorded = evidence.get("used") if isinstance(evidence, dict) else None
    figures = {
        name: value
        for name, value in (recorded.items() if isinstance(recorded, dict) else ())
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
    if not {"cpu_percent", "cpus", "process_gib"} <= figures.keys():
        return None
    asked = f" of {figures['memory_gib']:.3g} GiB" if "memory_gib" in figures else ""
    cpus = f"{figures['cpus']:.0f} CPU{'s' * (figures['cpus'] != 1)}"
    return f"{figures['cpu_percent']:.0f} % of {cpus}; its largest process {figures['process_gib']:.3g}{asked or ' GiB'}"


def of_service(evidence: object) -> str | None:
    """Return a service's report about a run's session; `None` for a run on a machine."""
    said = evidence.get("service") if isinstance(evidence, dict) else None
    return said if isinstance(said, str) else None


def disk_refused(evidence: object) -> str | None:
    """Return why a host's disk refused the record of a run's end, and the consequence; `None` if it was written."""
    said = evidence.get("disk") if isinstance(evidence, dict) else None
    return said if isinstance(said, str) else None


def log_of_job(evidence: object) -> str:
    """Return the end of the log of a scheduler's job that could not begin its run; empty for any other run."""
    log = evidence.get("log") if isinstance(evidence, dict) else None
    return log if isinstance(log, str) else ""


def why_waiting(run: Summary | RunState) -> str | None:
    """Return why the start of a run waits in a queue; `None` for any other run."""
    return (
        of_service(run.evidence) if run.state in (State.RESERVED, State.RESUMING, State.SUSPENDED) else None
    )


def with_stop(said: str, short: str) -> str:
    """Return the host's report about a queued job, followed by the stop command if the job can never start."""
    return f"{said}   launch stop {short}" if "waits for ever" in said else said


def of_rent(evidence: object) -> bool:
    """Return whether a run waits because the rental of its machine has ended."""
    return isinstance(evidence, dict) and "rent" in evidence


def not_sent(evidence: object) -> str | None:
    """Return why the notification of a run's end was not sent; `None` if it was, or if the job has none."""
    problem = evidence.get("on_end") if isinstance(evidence, dict) else None
    return problem if isinstance(problem, str) else None


def is_in_doubt(evidence: object) -> bool:
    """Return whether a run's scheduler does not answer, so that its state is the last one seen."""
    return isinstance(evidence, dict) and evidence.get("silent") is True


def why_silent(run: Summary | RunState) -> str | None:
    """Return why it is unknown whether a run is alive, e.g. its engine or cluster does not answer; `None` if it is known."""
    is_engine_silent = run.state in (State.RESUMING, State.RESERVED) and "engine" in (run.evidence or {})
    return ", ".join(words(run.evidence)) if is_engine_silent or is_in_doubt(run.evidence) else None


def moved_aside(event: Event) -> dict[str, str]:
    """Return the checkpoints that the agent moved aside: their new paths within the checkpoints folder, by name."""
    return _of_checkpoints(event, "aside")


def damaged(event: Event) -> dict[str, str]:
    """Return the checkpoints that the agent skipped because they are damaged: the faults, by name."""
    return _of_checkpoints(event, "damaged")


def _of_checkpoints(event: Event, key: str) -> dict[str, str]:
    checkpoints = event.values.get("checkpoints") if event.kind == "evidence" else None
    found = checkpoints.get(key) if isinstance(checkpoints, dict) else None
    return (
        {str(name): str(text)[:MAX_CHARS] for name, text in found.items()} if isinstance(found, dict) else {}
    )


def made_anew(event: Event) -> int:
    """Return the number of code files that the host restored after a reboot because its disk had lost them."""
    code = event.values.get("code") if event.kind == "evidence" else None
    found = code.get("mended") if isinstance(code, dict) else None
    return found if isinstance(found, int) else 0


def warned(event: Event) -> str | None:
    """Return the warning of a training's guard, if an event contains one."""
    warning = event.values.get("warning") if event.kind == "evidence" else None
    why = warning.get("why") if isinstance(warning, dict) else None
    return why[:MAX_CHARS] if isinstance(why, str) else None


def observed(event: Event) -> str | None:
    """Return the library that the start-up hook observes, e.g. `Trainer of transformers 5.23.0`, if an event names one."""
    what = event.values.get("observed") if event.kind == "begin" else None
    return what[:MAX_CHARS] if isinstance(what, str) and what else None


def _clauses(key: str, value: Any) -> list[str]:
    if key == "container":
        return [f"its container {_end(value) if isinstance(value, dict) else f'was {value}'}"]
    if key == "keeper" and isinstance(value, dict):
        return [f"its agent {_end(value)}"]
    if key == "engine":
        return [f"its engine {value}"]
    if key == "service":
        return [str(value)]
    if key == "previous" and isinstance(value, dict):
        what = "the attempt before it"
        if isinstance(folder := value.get("folder"), int):
            what += f", in folder {folder:04d}"
        return [": ".join(filter(None, [what, ", ".join(words({**value, "folder": None}))]))]
    if key == "lost" and isinstance(value, list):
        return [f"lost: {', '.join(map(str, value))}"]
    if key in ("ended", "remaining") and isinstance(value, list):
        pids = ", ".join(str(one.get("pid")) for one in value if isinstance(one, dict))
        return [f"{'still there' if key == 'remaining' else 'ended'}: {pids}"] if pids else []
    return [f"{key} {value}"]


def _end(end: JsonObject) -> str:
    """Return the end of a container or an agent in words."""
    code, number = end.get("exit"), end.get("signal")
    if end.get("oom") is True or _is_count(end.get("oom_kills")):
        text = "ran out of memory"
    elif end.get("status") == "created":
        text = "was never started"
    elif number is not None:
        text = f"was killed by signal {number}"
    elif code == KILLED:
        text = f"was killed (exit {code})"
    else:
        text = f"ended with {code}" if code is not None else f"is {end.get('status') or 'not known'}"
    return f"{text}: {end['error']}" if end.get("error") else text


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value > 0
