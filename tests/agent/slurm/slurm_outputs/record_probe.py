"""Write what Slurm says of itself on a login node, for tests of what we read from it.

    python tests/agent/slurm/slurm_outputs/record_probe.py

Each file has what the four programs of a probe printed, and with which exit status. Takes a minute.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from testbed.client import until
from testbed.slurm_cluster import SlurmCluster, slurm_cluster

from launcher.agent.host import slurm_facts

FOLDER = Path(__file__).resolve().parent
USER = "ada"


def asked(cluster: SlurmCluster, *words: str) -> str:
    """Run a program as ada on the second login node; return its words, what it printed, and its exit status."""
    line = " ".join(f"'{word}'" for word in words)
    return f"$ {' '.join(words)}\n{cluster.ssh('sh', '-c', f'LC_ALL=C {line} 2>&1; echo [$?]', login=1)}"


def record(cluster: SlurmCluster, name: str) -> None:
    """Write the file of the cluster as it is now."""
    questions = (
        slurm_facts.CONFIG,
        slurm_facts.NODES,
        slurm_facts.QUEUE,
        (*slurm_facts.ACCOUNTS, f"user={USER}"),
    )
    (FOLDER / f"probe-{name}.txt").write_text("".join(asked(cluster, *words) for words in questions))
    print(name, flush=True)


def main() -> None:
    """Record a cluster at rest and at work, one whose controller is gone, and one with accounts."""
    with slurm_cluster() as cluster:
        record(cluster, "at-rest")
        for words in (("--nodes=1", "--exclusive"), ("--hold",)):
            cluster.submit("sleep 100", *words)
        until(lambda: "R" in cluster.ssh(*slurm_facts.QUEUE).split(), "a job to run")
        with cluster.drained(cluster.nodes[1]):
            cluster.controller.enter("scontrol", "update", "PartitionName=short", "State=DOWN")
            record(cluster, "at-work")
            cluster.controller.enter("scontrol", "update", "PartitionName=short", "State=UP")
        cluster.clear()
        with cluster.no_controller():
            record(cluster, "no-controller")
    with slurm_cluster(has_accounting=True) as cluster:
        record(cluster, "no-associations")
        for words in (
            ("add", "account", "lab", "Description=lab", "Organization=lab"),
            ("add", "qos", "high"),
            ("add", "user", USER, "Account=lab"),
            ("modify", "user", USER, "set", "QOS=normal,high"),
        ):
            cluster.controller.enter("sacctmgr", "--immediate", *words)
        record(cluster, "with-accounts")


if __name__ == "__main__":
    main()
