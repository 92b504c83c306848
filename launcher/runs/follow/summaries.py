"""Summaries of runs: from their host, or from this client's records."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.copy import last_seen
from launcher.copy.mirror import LocalCopy
from launcher.errors import NoRunError
from launcher.runs.follow.evidence import diagnosis, doubt, lingered
from launcher.transport.client.desk import HostClient
from launcher.values.record import RunState, State, Summary, is_terminal


def runs_of(desk: HostClient, runs: Sequence[str]) -> list[Summary]:
    """Return the summaries of these runs, without those that the host does not have."""
    asked = {*runs}
    return [summary for summary in desk.runs.summaries(*runs) if summary.run in asked] if runs else []


def summary_of(desk: HostClient, run: str) -> Summary | None:
    """Return the summary of a run; `None` if its host has no such run."""
    return next(iter(runs_of(desk, [run])), None)


def has_live_session(desk: HostClient, run: str) -> bool:
    """Return whether a run may be active in a session of its host."""
    summary = summary_of(desk, run)
    idle = (State.INTERRUPTED, State.RESERVED)
    return summary is not None and summary.state not in idle and not is_terminal(summary.state)


def known_summary(desk: HostClient, run: str) -> Summary:
    """Return the summary of a run. Raises NoRunError if its host has no such run."""
    summary = summary_of(desk, run)
    if summary is None:
        words = f"{desk.host} has no run {run}: removed there?\n  look   launch ps --host {desk.host}"
        raise NoRunError(words)
    return summary


def remembered(mirror: LocalCopy) -> Summary:
    """Return this client's last summary of a run without asking its host."""
    return last_seen.latest(mirror, _on_record(mirror))


def _on_record(mirror: LocalCopy) -> Summary:
    """Return the summary of a run from its fetched records."""
    plan, state = mirror.record.plan(), mirror.state() or RunState(state=State.PREPARING)
    reached = state if None not in (state.step, state.loss) else mirror.record.last_step()
    return Summary(
        run=mirror.run,
        state=state.state,
        reason=state.reason,
        attempt=state.attempt,
        step=reached.step,
        steps=plan.steps,
        loss=reached.loss,
        job=plan.job,
        job_id=mirror.record.job_id(),
        card=plan.card,
        evidence=state.evidence
        if diagnosis(state.evidence) or doubt(state.evidence) or lingered(state.evidence)
        else None,
        rehearsed=plan.rehearsed,
        parent=mirror.record.parent(),
        time=mirror.launched() or None,
        ended=_ended(mirror, state),
        took_s=mirror.attempts_s(),
    )


def _ended(mirror: LocalCopy, state: RunState) -> float | None:
    """Return the end of a run by this machine's clock, because the host's clock may differ."""
    began = mirror.record.began()
    if not is_terminal(state.state) or state.time is None or began is None:
        return None
    return mirror.launched() + state.time - began
