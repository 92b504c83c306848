"""The agent's verb `beside RUN`: a `serve` in the node of a run's job, for commands beside the run.

`srun` starts it from a login node as a step of the job. It has the variables of the run's agent, which the
job's script has set, and not those of the login.
"""

from __future__ import annotations

import os
from typing import List

from ..liveness.native.native_liveness import agent_of
from ..record.rundir import Run
from ..serving import serve
from ..system import process
from ..verbs import relay
from .job_script import complete_variables, take_variables_of_script

MAGIC = b"\nLAUNCH-AGENT 1 have\n"
"""Marks the start of the agent's output, after anything that a login or Slurm's programs print."""


def main(arguments: List[str]) -> int:
    """Serve one client in this node. With a port number, forward one connection to that port instead."""
    run = Run(os.path.abspath(arguments[0]))
    _take_variables(run)
    os.write(1, MAGIC)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it would mix with the answers
    if len(arguments) > 1:
        return relay.main(arguments[1:])
    return serve.main([run.root])


def _take_variables(run: Run) -> None:
    """Take the variables of the run's agent, or a login's if no agent runs."""
    agent = agent_of(run)
    inherited = None if agent is None else process.variables_of(agent.pid)
    if inherited:
        os.environ.clear()
        os.environ.update(inherited)
    take_variables_of_script()
    complete_variables()
