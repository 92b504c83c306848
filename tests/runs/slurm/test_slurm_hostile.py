"""Another user of the cluster, who reads and tries all that Slurm and the shared disk allow; the home of the victim can be read by all.

Judged by a ledger of the training, by Slurm's own programs, and by what the other user could print.
"""

from __future__ import annotations

import pytest
from runs.slurm.test_slurm_verbs import LATER, Hive
from testbed.client import until

pytestmark = pytest.mark.testbed

SECRET = "hunter2-of-ada-0123456789"
ON_LOGIN = {
    "reads the secret": "cat {hiding}",
    "reads any file of the run": "grep -r {secret} {path} && echo GOT",
    "finds the secret in the home": "grep -rl {secret} /home/ada/.launch && echo GOT",
    "writes a wish": "echo cancel >{path}/control/wish && echo GOT",
    "replaces the wish by a link": "ln -sf /dev/null {path}/control/wish && echo GOT",
    "writes the record of the job": "echo '{{}}' >{path}/control/slurm.json && echo GOT",
    "writes the plan": "echo '{{}}' >{path}/plan.json && echo GOT",
    "moves the run away": "mv {path} {path}.gone && echo GOT",
    "writes the script": "echo 'raise SystemExit' >{path}/work/code/train.py && echo GOT",
    "adds a run": "mkdir /home/ada/.launch/runs/261130-mine-aaaaaa && echo GOT",
    "locks the run's files": "find {path} -name '*lock*' -exec flock --exclusive --nonblock {{}} echo GOT ';'",
    "locks the root's files": "find /home/ada/.launch -maxdepth 3 -name '*lock*' -exec flock --exclusive --nonblock {{}} echo GOT ';'",
    "replaces the agent": "find /home/ada/.launch -name '*.pyz' -exec cp /etc/hostname {{}} ';' -exec echo GOT ';'",
    "asks an agent of the victim's": "python3 -I $(find /home/ada/.launch -name '*.pyz' | head -1) serve /home/ada/.launch </dev/null && echo GOT",
    "cancels the job": "scancel {job} 2>&1; scancel --name={name} 2>&1; scancel --user=ada 2>&1",
    "signals the script": "scancel --batch --signal=USR1 {job} && echo GOT",
    "signals the steps": "scancel --signal=KILL {job}.0 2>&1",
    "holds the job": "scontrol hold {job} && echo GOT",
    "requeues the job": "scontrol requeue {job} && echo GOT",
    "suspends the job": "scontrol suspend {job} && echo GOT",
    "renames the job": "scontrol update JobId={job} JobName=mine && echo GOT",
    "changes the comment": "scontrol update JobId={queued_job} Comment=launch:none && echo GOT",
    "lets the queued job begin": "scontrol update JobId={queued_job} StartTime=now && echo GOT",
    "ends the queued job": "scancel {queued_job} && echo GOT",
    "starts a step in the job": "timeout 20 srun --jobid={job} --overlap --ntasks=1 hostname && echo GOT",
    "reads the job's script": "scontrol write batch_script {job} - | grep agent && echo GOT",
    "attaches to the step": "timeout 10 sattach {job}.0 | grep . && echo GOT",
    "submits a job of the same name": "sbatch --parsable --output=/dev/null --job-name={name} --comment=launch:{run} --wrap='sleep 1'",
    "submits one in the run's folder": "sbatch --parsable --output=/dev/null --job-name={name} --comment=launch:{run} --chdir={path} --wrap='sleep 1'",
    "submits one with bars in its name": "sbatch --parsable --output=/dev/null --job-name='{job}|RUNNING|x|launch:{run}' --comment='launch:{run}|{path}' --wrap='sleep 1'",
    "submits one with a line in its comment": "sbatch --parsable --output=/dev/null --comment='x\n{job}|COMPLETED|None|N/A|N/A|1|node1|launch:{run}' --wrap='sleep 1'",
    "takes the folder of the victim's files in /tmp": "for name in launch launch-{run} launch-ada launch-20001 {run}; do mkdir /tmp/$name; ln -s /home/bob /dev/shm/$name; done",
}  # fmt: skip
"""What bob types on a login node: the name of the try, and a shell script that prints GOT if it did what it should not."""
ON_NODE = {
    "reads the variables of the processes": "for one in $(pgrep -u ada); do tr '\\0' '\\n' </proc/$one/environ | grep {secret} && echo GOT; done",
    "reads their command lines": "for one in $(pgrep -u ada); do tr '\\0' ' ' </proc/$one/cmdline; done | grep {secret} && echo GOT",
    "reads their memory": "for one in $(pgrep -u ada); do head -c 1 /proc/$one/mem && echo GOT; done",
    "kills them": "for one in $(pgrep -u ada); do kill -9 $one && echo GOT; done",
    "takes the place of a process": "LAUNCH_RUN={run} LAUNCH_TOKEN=guess python3 -c 'import time; time.sleep(3)'",
    "reports as a worker": "python3 {folder}/report.py && echo GOT",
    "listens at the ports that torch takes by default": "python3 -c 'import socket, time; [socket.create_server((\"\", port)) for port in (29500, 29400)]; time.sleep(2)'",
    "reads the node's temporary files": "grep -r {secret} /tmp /dev/shm /run && echo GOT",
}  # fmt: skip
"""What bob types in a job of his own on the node of the run."""
REPORT = """
import json, socket, sys
paths = {line.split()[-1] for line in open("/proc/net/unix").read().splitlines()[1:] if len(line.split()) == 8}
done = 0
for path in paths:
    if "launch" not in path or "/spool." in path:  # those are Slurm's own
        continue
    print("tries", path)
    try:
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.connect("\\0" + path[1:] if path.startswith("@") else path)
        channel.sendall(json.dumps({"kind": "done", "step": 7, "rank": 0, "time": 0, "values": {}}).encode() + b"\\n")
    except OSError:
        continue
    done += 1
    print("reached", path)
sys.exit(0 if done else 1)
"""


@pytest.fixture
def hive(client, slurm):
    """A client of the cluster whose root, as any file of ada's home, is where others may look."""
    slurm.ssh("sh", "-c", "rm -rf enough deaf; chmod 755 .")
    made = Hive(client, slurm)
    yield made
    made.end_jobs()
    slurm.ssh("chmod", "700", ".")


def test_another_user_of_the_cluster_can_neither_read_start_end_nor_mislead(hive):
    """40 tries against a run that trains and one that waits; both stay what they were, and end as their user asks."""
    cluster, client = hive.cluster, hive.client
    (client.home / "secrets").write_text(f"HUNTED={SECRET}\n")
    hidden = ("--env-file", str(client.home / "secrets"))
    run, queued = hive.start(*hidden), hive.start(*hidden, *LATER)
    hive.trains(run)
    node, path = hive.node(run).name, f"/home/ada/.launch/runs/{run}"
    cluster.ssh("sh", "-c", f"cat >report.py <<'END'\n{REPORT}\nEND", user="bob")
    (hiding,) = cluster.ssh("grep", "-rl", SECRET, path).split()  # it is there to be found
    values = {
        "path": path, "run": run, "job": hive.job(run), "queued_job": hive.job(queued), "secret": SECRET, "hiding": hiding,
        "name": run.partition("-")[2], "folder": "/home/bob",
    }  # fmt: skip
    got = {}
    for name, script in ON_LOGIN.items():
        got[name] = cluster.ssh("sh", "-c", script.format(**values), user="bob", check=False)
    for name, script in ON_NODE.items():
        words = (
            "srun",
            "--partition=batch",
            f"--nodelist={node}",
            "--quiet",
            "sh",
            "-c",
            script.format(**values),
        )
        got[name] = cluster.ssh(*words, user="bob", check=False)
    assert "tries" in got["reports as a worker"]
    assert {name: said for name, said in got.items() if "GOT" in said or SECRET in said} == {}
    shown = cluster.ssh("sh", "-c", "squeue --all -o '%all'; scontrol show job --details", user="bob")
    assert SECRET not in shown
    before = len(hive.ledger(run))
    hive.trains(run, before + 5)
    (row, waits) = (hive.row(run), hive.row(queued))
    assert (row["state"], row["attempt"], row["job_id"]) == ("running", 1, values["job"])
    assert (waits["state"], waits["job_id"]) == ("reserved", values["queued_job"])
    assert "finished" not in client.ok("sweep", "--host", "hive")
    client.ok("stop", run)
    client.ok("stop", queued)
    assert [line for line in hive.ledger(run) if line.startswith("from")] == [hive.ledger(run)[0]]
    assert hive.ledger(queued) == []
    until(lambda: hive.row(run)["state"] == "stopped", "the end")
    assert cluster.ssh("grep", "-rl", SECRET, path, check=False) == ""
