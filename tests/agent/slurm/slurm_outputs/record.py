"""Write what Slurm says of jobs in every state, for tests of what we read from it.

    python tests/agent/slurm/slurm_outputs/record.py

Each file has what squeue, scontrol and sacct printed about one job, and with which exit status. Takes five minutes.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from testbed.client import until
from testbed.slurm_cluster import SlurmCluster, slurm_cluster

from launcher.agent.liveness.slurm import queue_position, slurm_jobs

FOLDER = Path(__file__).resolve().parent
LOOP = "trap : TERM; while :; do sleep 0.1; done"
KEPT = ("--requeue", "--open-mode=append", "--comment=launch:a-run")
ALONE = ("--nodes=2", "--exclusive")


def asked(cluster: SlurmCluster, *words: str) -> str:
    """Run a program as ada on the second login node; return its words, what it printed, and its exit status."""
    line = " ".join(f"'{word}'" for word in words)
    return f"$ {' '.join(words)}\n{cluster.ssh('sh', '-c', f'{line} 2>&1; echo [$?]', login=1)}"


def record(cluster: SlurmCluster, name: str, job: str) -> None:
    """Write the file of one job as it is now."""
    time.sleep(1.5)  # until the database has heard of it
    said = [
        asked(cluster, *slurm_jobs.QUEUE),
        asked(cluster, *slurm_jobs.SHOW, job),
        asked(cluster, *slurm_jobs.HISTORY, job),
    ]
    (FOLDER / f"{name}.txt").write_text("".join(said))
    print(name, cluster.state(job), flush=True)


def waiting(cluster: SlurmCluster) -> None:
    """Record jobs that wait."""
    held = cluster.submit("true", "--hold", *KEPT)
    record(cluster, "held", held)
    later = cluster.submit("true", "--begin=now+1hour", *KEPT)
    record(cluster, "begins-later", later)
    depends = cluster.submit("true", f"--dependency=afterok:{held}", *KEPT)
    record(cluster, "depends", depends)
    too_long = cluster.submit("true", "--partition=short", "--time=60", *KEPT)
    record(cluster, "over-the-limit-of-its-partition", too_long)
    too_many = cluster.submit("true", "--nodes=9", *KEPT)
    record(cluster, "more-nodes-than-there-are", too_many)
    with cluster.drained(*cluster.nodes):
        job = cluster.submit("true", *KEPT)
        until(lambda: cluster.job(job)["Reason"] not in ("None", "Priority"), "a reason")
        record(cluster, "nodes-drained", job)
    cluster.clear()
    holder = cluster.submit(LOOP, "--time=10", *ALONE)
    cluster.until_state(holder, "RUNNING")
    job = cluster.submit("true", "--gres=gpu:a100:2", "--nodes=2", "--time=10", *KEPT)
    until(lambda: cluster.ssh("squeue", "-h", "-j", job, "-o", "%S").strip() != "N/A", "an estimated start")
    record(cluster, "waits-for-cards", job)
    array = cluster.submit("true", "--array=1-3", *KEPT)
    record(cluster, "array-waits", array)
    cluster.clear()


def running(cluster: SlurmCluster) -> None:
    """Record jobs that run."""
    job = cluster.submit(LOOP, "--gres=gpu:2", *KEPT)
    cluster.until_state(job, "RUNNING")
    record(cluster, "running", job)
    cluster.controller.enter("scontrol", "suspend", job)
    record(cluster, "suspended", job)
    cluster.controller.enter("scontrol", "resume", job)
    cluster.until_state(job, "RUNNING")
    cluster.ssh("scontrol", "requeue", job)
    record(cluster, "requeued-and-ending", job)
    cluster.until_state(job, "PENDING")
    record(cluster, "requeued", job)
    cluster.start_now(job)
    cluster.until_state(job, "RUNNING")
    record(cluster, "running-again", job)
    cluster.ssh("scontrol", "requeuehold", job)
    cluster.until_state(job, "PENDING")
    record(cluster, "requeued-and-held", job)
    cluster.clear()


def steps(cluster: SlurmCluster) -> None:
    """Record the steps of a job, and those of one that nobody knows."""
    srun = "srun --overlap --nodes=1 --ntasks=1"
    script = f"{srun} --job-name={slurm_jobs.MEMBERS} sleep 60 & {srun} --job-name='a|b' sleep 60 & wait"
    job = cluster.submit(script)
    until(lambda: len(cluster.ssh("squeue", "--steps", "-h", "-j", job).splitlines()) == 3, "its steps")
    said = [asked(cluster, *slurm_jobs.STEPS, number) for number in (job, "999999")]
    (FOLDER / "steps.txt").write_text("".join(said))
    cluster.clear()


def in_line(cluster: SlurmCluster) -> None:
    """Record what ada sees of her own jobs, and of all that wait, while bob has the nodes and more jobs."""
    holder = cluster.submit(LOOP, *ALONE, user="bob")
    cluster.until_state(holder, "RUNNING")
    for flags in (
        ("--nodes=2",),
        ("--partition=short",),
        ("--partition=short,spare",),
        ("--hold",),
        ("--begin=now+1hour",),
        ("--array=1-3",),
        ("--nice=100",),
    ):
        cluster.submit("true", *flags, user="bob")
    for flags in (("--gres=gpu:a100:1",), ("--partition=short,batch",)):
        last = cluster.submit("true", "--comment=launch:a-run", *flags)
    cluster.submit("true", user="bob")
    until(lambda: cluster.job(last)["Reason"] == "Priority", "a reason")
    said = [asked(cluster, *words) for words in (slurm_jobs.QUEUE, queue_position.LINE)]
    (FOLDER / "in-line.txt").write_text("".join(said))
    cluster.clear()


def ended(cluster: SlurmCluster) -> None:
    """Record jobs that have ended."""
    for name, script in (("completed", "exit 0"), ("failed", "exit 3"), ("killed", "kill -9 $$")):
        job = cluster.submit(script, *KEPT)
        cluster.until_state(job, "COMPLETED", "FAILED")
        record(cluster, name, job)
    job = cluster.submit("true", "--output=/root/no/slurm.log", *KEPT)
    cluster.until_state(job, "COMPLETED", "FAILED")
    record(cluster, "no-folder-for-its-output", job)
    job = cluster.submit("true", "--hold", *KEPT)
    cluster.ssh("scancel", job)
    record(cluster, "cancelled-while-queued", job)
    job = cluster.submit(LOOP, *KEPT)
    cluster.until_state(job, "RUNNING")
    cluster.ssh("scancel", job)
    record(cluster, "cancelled-and-ending", job)
    cluster.until_state(job, "CANCELLED")
    record(cluster, "cancelled", job)
    (FOLDER / "unknown.txt").write_text(
        asked(cluster, *slurm_jobs.SHOW, "999999") + asked(cluster, *slurm_jobs.HISTORY, "999999")
    )


def made_way(cluster: SlurmCluster) -> None:
    """Record jobs that Slurm took the nodes from."""
    for name, mode in (("preempted", "REQUEUE"), ("preempted-for-good", "CANCEL")):
        cluster.controller.enter("scontrol", "update", "PartitionName=spare", f"PreemptMode={mode}")
        job = cluster.submit(LOOP, "--partition=spare", *ALONE, *KEPT)
        cluster.until_state(job, "RUNNING")
        cluster.submit("sleep 1", *ALONE)
        cluster.until_state(job, "PENDING", "PREEMPTED")
        record(cluster, name, job)
        cluster.clear()


def out_of_time(cluster: SlurmCluster) -> None:
    """Record a job whose time was up."""
    job = cluster.submit(LOOP, "--time=1", *KEPT)
    cluster.until_state(job, "TIMEOUT", timeout=150)
    record(cluster, "timeout", job)


def lost(cluster: SlurmCluster) -> None:
    """Record jobs whose node died."""
    with cluster.drained(cluster.nodes[0]):
        job = cluster.submit(LOOP, *KEPT)
        final = cluster.submit(LOOP, "--no-requeue", "--comment=launch:a-run")
        cluster.until_state(final, "RUNNING")
    cluster.nodes[1].kill()
    cluster.until_state(job, "PENDING", timeout=90)
    record(cluster, "node-failed", job)
    record(cluster, "node-failed-without-requeue", final)
    cluster.nodes[1].up()
    cluster.clear()


def in_trouble(cluster: SlurmCluster) -> None:
    """Record what programs say that cannot do their work."""
    job = cluster.submit(LOOP, "--no-requeue")
    cluster.until_state(job, "RUNNING")
    refusals = [asked(cluster, "scontrol", "requeue", job)]
    refusals += [
        asked(cluster, "sbatch", "--parsable", *flags, "--wrap=true")
        for flags in (
            ("--partition=none",),
            ("--gres=gpu:9",),
            ("--nodes=9",),
            ("--constraint=h100",),
            ("--qos=none",),
            ("--account=none",),
            ("--reservation=none",),
            ("--time=x",),
            ("--time=99-0",),
        )
    ]
    (FOLDER / "refusals.txt").write_text("".join(refusals))
    with cluster.no_controller():
        said = [asked(cluster, *words) for words in (slurm_jobs.QUEUE, (*slurm_jobs.SHOW, job))]
        said.append(asked(cluster, "sbatch", "--parsable", "--wrap=true"))
    (FOLDER / "no-controller.txt").write_text("".join(said))
    with cluster.silent_controller():
        said = [asked(cluster, *slurm_jobs.QUEUE), asked(cluster, "sbatch", "--parsable", "--wrap=true")]
    (FOLDER / "silent-controller.txt").write_text("".join(said))


def main() -> None:
    """Record everything, with accounting and then without."""
    with slurm_cluster(has_accounting=True) as cluster:
        for part in (waiting, running, steps, in_line, ended, made_way, out_of_time, lost, in_trouble):
            part(cluster)
    with slurm_cluster() as cluster:
        job = cluster.submit("true")
        cluster.until_state(job, "COMPLETED")
        (FOLDER / "no-accounting.txt").write_text(asked(cluster, *slurm_jobs.HISTORY, job))


if __name__ == "__main__":
    main()
