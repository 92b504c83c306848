"""The script of a run's job, as a dry run shows it; the agent on the login node submits the same."""

from __future__ import annotations

import shlex

from launcher.agent.liveness.slurm.slurm_submission import (
    flags_of,
    lines_of_agent,
    script_of,
    told_s,
    with_dependencies,
)
from launcher.agent.record.rundir import Run
from launcher.values.facts import Facts
from launcher.values.plan import Plan

UNNAMED = "xxxxxx"
"""Stands for the random end of a run's id, which a launch chooses."""


def job_script(plan: Plan, facts: Facts) -> str:
    """Return the whole script of a plan's job, with the flags of sbatch as `#SBATCH` lines; empty without a request.

    The folder of the agent and the jobs of runs before it are not known yet. Without a `time`, the limit of the partition decides when the run is warned;
    a dry run does not ask for it.
    """
    asked = plan.slurm
    if asked is None:
        return ""
    run = Run(f"{facts.root}/runs/YYMMDD-{plan.job}-{UNNAMED}")
    flags = flags_of(run, asked.flags, told_s(plan.stop_grace_s, asked.time_s))
    jobs = [
        f"after{condition}:JOB-OF-{run}" for run, _, condition in (one.partition(":") for one in asked.after)
    ]
    flags = with_dependencies(flags, jobs)
    first, *rest = script_of(
        asked.modules, lines_of_agent("job", run, "python3", f"{facts.root}/agent/{UNNAMED}/agent.pyz")
    ).splitlines()
    lines = [first, *(f"#SBATCH {shlex.quote(flag)}" for flag in flags if flag != "--parsable"), *rest]
    return "\n".join(lines)
