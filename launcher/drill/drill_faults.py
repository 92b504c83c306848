"""Cause the faults of a drill, with a plain shell on the host or by cutting the client's connection.

Each fault is recorded in the ledger.
"""

from __future__ import annotations

from typing import NamedTuple

from launcher.drill import host_shell
from launcher.drill.drill_outcome import By, Planned
from launcher.transport.client.host_client import HostClient

STEP_WAIT_S = 90
"""Seconds to wait for the step of the fault."""
SLURM = "slurm"

_TOOLS = """
pids() { # of the processes whose command line has these words
    ps -eww -o pid=,args= | WORDS="$1" awk 'index($0, ENVIRON["WORDS"]) { print $1 }'
}
hit() { # kill them; there must be one
    found=$(pids "$1")
    [ -n "$found" ] && kill -9 $found || { echo "not killed: $1: $([ -n "$found" ] && echo not allowed || echo not there)"; exit; }
}
newest() { ls "$RUN/work/checkpoints" | sed -n 's/^step-//p' | sort -n | sed -n '$p'; }
"""
_WAIT = """
turns=0
until [ "$(grep -c '"step"' "$LEDGER")" -ge "$AT" ]; do
    turns=$((turns + 1))
    [ $turns -lt $((WAIT * 20)) ] || { echo "step $AT did not begin within $WAIT s"; exit; }
    sleep 0.05
done
"""

_ON_CLUSTER = """
PATH="$PATH:/opt/slurm/bin:/usr/local/slurm/bin:/cm/shared/apps/slurm/current/bin"
NAME="${RUN##*/}"; NAME="${NAME#*-}" # as the agent names the job of a run
job() { squeue --me --noheader --name="$NAME" --format=%i; }
state() { squeue --me --noheader --name="$NAME" --format=%T; }
hit() { # kill them on the node of the run; there must be one
    WORDS="$1" srun --overlap --jobid="$(job)" --nodes=1 --ntasks=1 --quiet --export=ALL sh -c '
        found=$(ps -eww -o pid=,args= | awk "index(\\$0, ENVIRON[\\"WORDS\\"]) && !index(\\$0, \\"srun\\") { print \\$1 }")
        [ -n "$found" ] && kill -9 $found
    ' || { echo "not killed: $1: not there, or not allowed"; exit; }
}
begin_again() { # at once, where the user may ask for that; else after the two minutes that Slurm lets pass
    turns=0
    until [ "$(state)" = PENDING ]; do
        turns=$((turns + 1))
        [ $turns -lt 600 ] || { echo "Slurm did not put its job back into the queue"; exit; }
        sleep 0.2
    done
    while [ "$(state)" = PENDING ]; do
        turns=$((turns + 1))
        [ $turns -lt 800 ] || { echo "Slurm did not start its job again"; exit; }
        scontrol update JobId="$(job)" StartTime=now
        sleep 1
    done
}
"""
"""More shell functions for a login node, because a run's processes are on another node."""

_HURT = """
printf '{"hurt": "%s"}\\n' "$FAULT" >> "$LEDGER"
"""

_SCRIPTS = {
    "trainer-killed": 'hit "drill.py $TOKEN"',
    "agent-killed": 'hit "supervise $RUN"',
    "checkpoint-torn": """
torn="$RUN/work/checkpoints/step-$(newest)"
[ -d "$torn" ] || { echo "there was no checkpoint yet"; exit; }
chmod u+w "$torn" "$torn"/* && head -c 1000 "$torn/weights.bin" > "$torn.part" && cat "$torn.part" > "$torn/weights.bin"
rm -f "$torn.part"
[ "$(wc -c < "$torn/weights.bin")" -eq 1000 ] || { echo "the checkpoint could not be changed"; exit; }
hit "drill.py $TOKEN"
""",
}
"""Shell commands that cause each fault once the step has begun."""
_SCRIPTS_ON_CLUSTER = {
    "agent-killed": 'hit "step $RUN"',
    "job-requeued": 'scontrol requeue "$(job)" || { echo "scontrol requeue was refused"; exit; }',
}
"""Commands for a login node: they replace those above, or cause a fault that only a cluster has."""


class DrillPlace(NamedTuple):
    """A run's folder on its host, the folder of its ledger, and the token on its training's command line."""

    folder: str
    ledger: str
    token: str

    @property
    def run(self) -> str:
        """The run's id."""
        return self.folder.rpartition("/")[2]


def bring_about(
    watching: HostClient,
    planned: Planned,
    place: DrillPlace,
    runtime: str,
    followed: HostClient,
) -> str | None:
    """Wait for the step, then cause the fault in the run or cut its follower's connection.

    Return the problem, if any. Raises HostError.
    """
    fault = planned.fault
    variables = host_shell.assigned(
        RUN=place.folder,
        LEDGER=f"{place.ledger}/ledger.jsonl",
        TOKEN=place.token,
        FAULT=fault.name,
        AT=str(planned.at),
        WAIT=str(STEP_WAIT_S),
    )
    tools, hurt = _TOOLS, _SCRIPTS.get(fault.name, "")
    if runtime == SLURM:
        tools, hurt = _TOOLS + _ON_CLUSTER, _SCRIPTS_ON_CLUSTER.get(fault.name, hurt)
    body = [variables, tools, _WAIT, hurt]
    if fault.by == By.HOST:
        after = "begin_again\n" if fault.name == "job-requeued" else ""
        script = "".join([*body, _HURT, after, "echo done"])
        return _problem(host_shell.run(watching, script, STEP_WAIT_S + fault.seconds + 120))
    problem = _problem(host_shell.run(watching, "".join([*body, "echo done"]), STEP_WAIT_S + 30))
    if problem is not None:
        return problem
    followed.sever()
    return _problem(host_shell.run(watching, variables + _HURT + "echo done"))


def _problem(said: str) -> str | None:
    """Return a script's complaint, its last line; None if it is "done"."""
    *_, last = said.splitlines() or ["the host's shell said nothing"]
    return None if last == "done" else last
