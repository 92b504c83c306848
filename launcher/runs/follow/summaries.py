"""Summaries of runs: from their host, or from this client's records."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.copy import last_seen
from launcher.copy.local_copy import LocalCopy, after_removal
from launcher.errors import NoRunError
from launcher.runs.follow.evidence import diagnosis, doubt, lingered
from launcher.transport.client.host_client import HostClient
from launcher.values.record import RunState, State, Summary, is_terminal


def runs_of(client: HostClient, runs: Sequence[str]) -> list[Summary]:
    """Return the summaries of these runs, without those that the host does not have."""
    asked = {*runs}
    return [summary for summary in client.runs.summaries(*runs) if summary.run in asked] if runs else []


def summary_of(client: HostClient, run: str) -> Summary | None:
    """Return the summary of a run; `None` if its host has no such run."""
    return next(iter(runs_of(client, [run])), None)


def has_live_session(client: HostClient, run: str) -> bool:
    """Return whether a run may be active in a session of its host."""
    summary = summary_of(client, run)
    idle = (State.INTERRUPTED, State.RESERVED)
    return summary is not None and summary.state not in idle and not is_terminal(summary.state)


def known_summary(client: HostClient, run: str) -> Summary:
    """Return the summary of a run. Raises NoRunError if its host has no such run."""
    summary = summary_of(client, run)
    if summary is None:
        raise NoRunError(f"{client.host} has no run {run}: removed there?\n  {after_removal(run)}")
    return summary


def remembered(local_copy: LocalCopy) -> Summary:
    """Return this client's last summary of a run without asking its host."""
    return last_seen.latest(local_copy, _on_record(local_copy))


def _on_record(local_copy: LocalCopy) -> Summary:
    """Return the summary of a run from its fetched records."""
    plan, state = local_copy.record.plan(), local_copy.state() or RunState(state=State.PREPARING)
    reached = local_copy.record.last_step()
    return Summary(
        run=local_copy.run,
        state=state.state,
        reason=state.reason,
        attempt=state.attempt,
        step=reached.step,
        steps=plan.steps,
        loss=reached.loss,
        job=plan.job,
        job_id=local_copy.record.job_id(),
        card=plan.card,
        evidence=state.evidence
        if diagnosis(state.evidence) or doubt(state.evidence) or lingered(state.evidence)
        else None,
        rehearsed=plan.rehearsed,
        parent=local_copy.record.parent(),
        time=local_copy.launched() or None,
        ended=_ended(local_copy, state),
        took_s=local_copy.took_s(),
    )


def _ended(local_copy: LocalCopy, state: RunState) -> float | None:
    """Return the end of a run by this machine's clock, because the host's clock may differ."""
    began = local_copy.record.began()
    if not is_terminal(state.state) or state.time is None or began is None:
        return None
    return local_copy.launched() + state.time - began
