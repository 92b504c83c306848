"""Stop a run, and wait until all its processes have ended."""

from __future__ import annotations

import math
import time
from typing import NamedTuple

from launcher.backends.runtimes import open_for_run
from launcher.errors import EngineError, RunError
from launcher.runs.follow.evidence import why_silent
from launcher.runs.follow.summaries import known_summary, summary_of
from launcher.transport.client.host_client import HostClient
from launcher.values.record import DISK_WORDS, State, Summary, is_terminal

STOP_SLACK_S = 30.0
FORCE_S = 8.0
"""How long the agent may be silent after `stop --now` before it is killed, in seconds."""


class StoppedRun(NamedTuple):
    """The last summary of an ended run. `problem` names the processes that remain, or the reason why its end was not recorded."""

    summary: Summary
    problem: str | None


def stop(client: HostClient, run: str, *, now: bool, grace_s: float) -> StoppedRun:
    """Ask a run to stop, or to stop now, and wait until it has ended; return its last summary.

    An agent that does not answer to `now` is killed after a while, with its training. `problem` names the
    processes that remain, a write that the host's disk refused, or an error of the container engine although
    the run ended. Raises RunError if the run still lives after its grace and some slack, EngineError if that
    cannot be determined.
    """
    wish = "cancel" if now else "stop"
    refused = client.runs.wish(run, wish)
    summary = summary_of(client, run)
    # The agent reports a longer grace if the run's steps and saves take long.
    grace_s = 0.0 if now or summary is None else max(grace_s, summary.grace_s or 0.0)
    problem, must_ask_again = _stop_runtime(client, summary, grace_s)
    if must_ask_again:
        refused = client.runs.wish(run, wish)
    began = time.monotonic()
    force_at = began + FORCE_S if now else math.inf
    while time.monotonic() < began + grace_s + STOP_SLACK_S:
        summary = known_summary(client, run)
        if is_terminal(summary.state) or (refused and summary.state == State.INTERRUPTED):
            return _stopped(client, summary, problem, refused)
        if problem is not None and why_silent(summary):
            break
        if time.monotonic() > force_at:
            force_at = math.inf
            refused = client.runs.wish(run, wish, force=True)
        time.sleep(0.1)
    if problem is not None:
        mend = f"without it   launch stop --now {run.rpartition('-')[2]}"
        raise EngineError(client.host, str(problem) if now else f"{problem}\n  {mend}") from problem
    raise RunError(
        f"{run} on {client.host} has not ended yet\n  now   launch stop --now {run}     look   launch ps"
    )


def _stop_runtime(
    client: HostClient, summary: Summary | None, grace_s: float
) -> tuple[EngineError | None, bool]:
    """Stop the run's runtime; return its engine's error, if any, and whether to ask the agent again.

    The runtime is stopped even for an ended run: the job may have written that end itself while its container
    still runs.
    """
    if summary is None:
        return None, False
    has_ended = is_terminal(summary.state)
    try:
        with open_for_run(client, summary) as runtime:
            return None, runtime.stop(summary.run, grace_s) and not has_ended
    except EngineError as error:
        return (None, False) if has_ended else (error, True)


def _stopped(
    client: HostClient, summary: Summary, problem: EngineError | None, refused: str | None
) -> StoppedRun:
    """Return an ended run, with a note on processes that remain, or on an end that was not recorded."""
    if problem is not None:
        words = [str(problem).splitlines()[0]]
    else:
        words = [f"still there: {thing}" for thing in client.runs.remaining(summary.run)]
    if refused:
        words.append(f"{DISK_WORDS.get(refused, refused)} on {client.host}: the end is not on record")
    return StoppedRun(summary, "; ".join(words) or None)
