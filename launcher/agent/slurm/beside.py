"""The agent's verb `beside RUN`: a `serve` in the node of a run's job, for what is done beside the run's own processes.

`srun` starts it from a login node as a step of the job. It has the variables of the run's agent, which the job's script has
made, and not those of the login that asked.
"""

from __future__ import annotations

import os
from typing import List

from ..liveness.native.native_liveness import agent_of
from ..record.rundir import Run
from ..serving import serve
from ..system import process
from ..verbs import relay
from .job_script import complete_variables

MAGIC = b"\nLAUNCH-AGENT 1 have\n"
"""Says that what follows is the agent's, and not what a login or Slurm's own programs print."""


def main(arguments: List[str]) -> int:
    """Serve one client in this node; with the number of a port, carry a connection to it."""
    run = Run(os.path.abspath(arguments[0]))
    _take_variables(run)
    os.write(1, MAGIC)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # it would get among the answers
    if len(arguments) > 1:
        return relay.main(arguments[1:])
    return serve.main([run.root])


def _take_variables(run: Run) -> None:
    """Take the variables of the run's agent, or, while there is none, those of a login."""
    agent = agent_of(run)
    inherited = None if agent is None else process.variables_of(agent.pid)
    if inherited:
        os.environ.clear()
        os.environ.update(inherited)
    complete_variables()
