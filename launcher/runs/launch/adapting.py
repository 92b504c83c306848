"""Suggest `--adapt` for a script that decides its own precision, and build the command that adapts it."""

from __future__ import annotations

import contextlib
import shlex

from launcher.config.resolve import Task
from launcher.copy.local_copy import LocalCopy
from launcher.errors import LaunchError
from launcher.planning.precision.precision_history import PRECISION_FAILURES
from launcher.planning.script.script import starts_python
from launcher.runs.follow import evidence
from launcher.transport.log_diagnosis import is_of_input
from launcher.values.host import LOCAL
from launcher.values.plan import Finding, Plan
from launcher.values.record import RunState, State


def suggestion(plan: Plan) -> tuple[Finding, ...]:
    """Return a note for a GPU plan whose script decides its own precision, if the hook could adapt it."""
    if plan.profile.kind == "cpu" or plan.hands_out("precision") or not starts_python(plan.command):
        return ()
    message = f"your script decides its own precision; {plan.profile.title} wants {plan.ladder[0].title}"
    return (
        Finding(
            level="note",
            code="not-adapted",
            message=message,
            mend="--adapt     applies this precision without a change to the file",
        ),
    )


def script_findings(plan: Plan, task: Task) -> list[Finding]:
    """Return the known bugs of a job's scripts on a plan's card; an adapted script takes its precision from the plan."""
    from launcher.config.script_problems import findings  # the rules load in 20 ms

    return findings(task.job, task.code, plan.profile, is_planned=plan.hands_out("precision"))


def mending_command(local_copy: LocalCopy, state: RunState) -> str | None:
    """Return the command that launches a run's script with the plan's precision, if that fixes its failure.

    A layer whose input is of another dtype needs a cast of the input.
    """
    line = evidence.diagnosis(state.evidence).get("line", "")
    if state.state != State.FAILED or state.reason not in PRECISION_FAILURES or is_of_input(line):
        return None
    with contextlib.suppress(LaunchError):
        plan = local_copy.whole_plan()
        if not plan.hands_out("precision") and starts_python(plan.command):
            return adapted_command(plan)
    return None


def adapted_command(plan: Plan) -> str:
    """Return the command line that launches a plan's command with `--adapt`.

    A `…` stands for parts that the user must fill in: the settings, model and data of a job.
    """
    words = ["launch"]
    if plan.host != LOCAL.name:
        words += ["--host", plan.host]
    if plan.rehearsed:
        words += ["--profile", plan.profile.name, "--rehearse"]
    for name, value in plan.variables.items():
        words += ["-e", f"{name}={value}"]
    for name in plan.secrets:
        words += ["-s", name]
    more = " …" if plan.settings or plan.model or plan.data else ""
    return f"{shlex.join(words)} --adapt{more} -- {shlex.join(plan.command)}"
