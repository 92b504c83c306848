"""What goes wrong on a cluster, and what becomes of a run: judged by the trainer's ledger and Slurm's own queue.

CI runs some rows of the table in one kind of shared home; `make slurm` runs all in three, and writes them down.
"""

import os
import time

import pytest
from testbed.client import missing, until
from testbed.kept import CLEAR_ROOT
from testbed.missing_part import MissingPartError
from testbed.slurm_cluster import SHARES, slurm_cluster
from testbed.slurm_ledger import INTERVAL, TRAINER, read_ledger

pytestmark = pytest.mark.testbed
CHOSEN = os.environ.get("LAUNCH_SLURM")
"""`all` rows in all kinds of shared home, or in the one that it names; without it those of CI."""
IS_WHOLE = CHOSEN is not None
SAID_S = 90


class Row:
    """One row of the table: a run on a cluster, what is done to it, and what is seen."""

    def __init__(self, client, cluster):
        self.client, self.cluster = client, cluster
        self.run = ""

    def launch(self, *words, steps=8):
        """Launch the run; wait for so many lines in its ledger."""
        self.run = self.client.detached(
            "--host", "hive", "--profile", "cpu", *words, "--", "python", "train.py"
        )
        if steps:
            self.until_steps(steps)
        return self

    def ledger(self):
        """Read what the trainer wrote down."""
        return read_ledger(self.cluster.ssh("cat", "ledger", check=False))

    def until_steps(self, count, starts=1):
        """Wait until so many starts are on record, the last with so many steps."""

        def has_steps():
            found = self.ledger().starts
            return len(found) >= starts and len(found[-1].steps) >= count

        until(has_steps, f"start {starts} to make {count} steps", SAID_S)

    def go_on(self, starts=2):
        """Let a job that waits out its two minutes begin, and wait for the trainer's next start."""
        self.cluster.until_state(self.job, "PENDING", timeout=SAID_S)
        self.cluster.start_now(self.job)
        self.until_steps(INTERVAL, starts)

    def end(self):
        """Let the trainer reach its end."""
        self.cluster.ssh("touch", "enough")

    def state(self, *states, reason=None):
        """Wait until `launch ps` shows one of these states; return its row."""

        def shown():
            row = self.client.summary(self.run)
            return row if row["state"] in states and (reason is None or row["reason"] == reason) else None

        return until(shown, f"{self.run} to be {states} {reason or ''}", SAID_S)

    @property
    def job(self):
        """The id of the run's job, by Slurm's own queue."""
        said = self.cluster.ssh("squeue", "--me", "--states=all", "--noheader", "-o", "%i|%k")
        found = [line.split("|")[0] for line in said.splitlines() if line.endswith(f"|launch:{self.run}")]
        return max(found, key=int)


@pytest.fixture(scope="module", params=SHARES if CHOSEN == "all" else [CHOSEN or "plain"])
def cluster(request):
    share = request.param
    if share != "plain" and not os.access("/dev/fuse", os.W_OK):
        pytest.skip("the kernel has no FUSE, or not for this user")
    try:
        with slurm_cluster(share, name=f"of-{share}") as made:
            yield made
    except MissingPartError as error:
        missing(str(error))


@pytest.fixture
def row(client, cluster):
    """A run on the cluster whose trainer goes on until it is told that it is enough."""
    table = cluster.logins[0].table("hive")
    (client.project / "launch.toml").write_text(f'{table}kind = "slurm"\npartition = "batch"\n')
    cluster.ssh("sh", "-c", f"rm -rf enough ledger; {CLEAR_ROOT}")
    client.script(TRAINER)
    yield Row(client, cluster)
    cluster.clear()


def time_limit(row):
    """The script is told by Slurm's own signal half a minute before its minute is over."""
    row.launch("--set", "slurm.time=1")
    row.state("resuming", reason="session-limit")
    row.go_on()
    row.end()


def time_nearly_up(row):
    """The same signal, sent now."""
    row.launch()
    row.cluster.ssh("scancel", "--batch", "--signal=USR1", row.job)
    row.state("resuming", reason="session-limit")
    row.go_on()
    row.end()


def preempted(row):
    """Another partition takes its node."""
    row.launch("--set", "slurm.partition=spare")
    other = row.cluster.submit("sleep 1", "--nodes=2", "--exclusive")
    row.state("resuming", reason="ended-by-slurm")
    row.cluster.until_state(other, "COMPLETED", timeout=SAID_S)
    row.go_on()
    row.end()


def preempted_with_grace(row):
    """The same, and the job has 8 s to make way: its step is told, its script is not."""
    with row.cluster.graced(8):
        row.launch("--set", "slurm.partition=spare")
        other = row.cluster.submit("sleep 1", "--nodes=2", "--exclusive")
        row.state("resuming", reason="ended-by-slurm")
        row.cluster.until_state(other, "COMPLETED", timeout=SAID_S)
        row.go_on()
    row.end()


def requeued_by_hand(row):
    """Its user has Slurm start it again."""
    row.launch()
    row.cluster.ssh("scontrol", "requeue", row.job, login=1)
    row.go_on()
    row.end()


def cancelled_in_the_queue(row):
    """Its user cancels its job, which waits."""
    row.launch("--set", 'slurm.extra=["--hold"]', steps=0)
    row.state("reserved")
    row.cluster.ssh("scancel", row.job)


def cancelled_while_it_runs(row):
    """Its user cancels its job, which runs."""
    row.launch()
    row.cluster.ssh("scancel", row.job, login=1)


def held(row):
    """It waits for as long as it is held, and says how it is let go."""
    row.launch("--set", 'slurm.extra=["--hold"]', steps=0)
    shown = row.state("reserved")
    assert f"scontrol release {row.job}" in shown["evidence"]["service"]
    time.sleep(1)
    row.client.ok("logs", row.run)
    assert row.ledger().starts == ()
    row.cluster.ssh("scontrol", "release", row.job)
    row.until_steps(3)
    row.end()


def node_lost(row):
    """Its node loses its power."""
    node = row.cluster.nodes[1]
    row.launch("--set", 'slurm.extra=["--nodelist=node2"]')
    node.kill()
    try:
        row.cluster.until_state(row.job, "PENDING", timeout=SAID_S)
        row.cluster.controller.enter("scontrol", "update", f"JobId={row.job}", "ReqNodeList=")
        row.go_on()
        row.end()
        row.state("succeeded")
    finally:
        row.cluster.reboot(node)


def slurmd_lost(row):
    """Only the daemon of its node dies: Slurm starts a second copy while the first one trains."""
    node = row.cluster.nodes[1]
    row.launch("--set", 'slurm.extra=["--nodelist=node2"]')
    node.end_daemon("slurmd", by="KILL")
    try:
        row.cluster.until_state(row.job, "PENDING", timeout=SAID_S)
        row.cluster.controller.enter("scontrol", "update", f"JobId={row.job}", "ReqNodeList=")
        row.go_on()
        assert row.ledger().starts[1].node == "node1"
        row.end()
        row.state("succeeded")
        left = node.enter("pgrep", "-u", "ada", "-f", "train.py", check=False)
        assert left == ""
    finally:
        row.cluster.reboot(node)


def controller_down(row):
    """No controller runs for a minute: the run goes on, and is in doubt meanwhile."""
    row.launch()
    with row.cluster.no_controller():
        until(lambda: "squeue" in (row.state("running")["evidence"] or {}).get("service", ""), "doubt")
        time.sleep(60 if IS_WHOLE else 1)
    row.state("running")
    row.end()


def agent_killed(row):
    """The agent on the node gets SIGKILL; its job starts another."""
    row.launch()
    row.cluster.nodes[0].enter("pkill", "-KILL", "-u", "ada", "-f", " step /home", check=False)
    row.cluster.nodes[1].enter("pkill", "-KILL", "-u", "ada", "-f", " step /home", check=False)
    row.until_steps(INTERVAL, starts=2)
    row.end()


def requeue_refused(row):
    """Its time is up, and Slurm may not start it again: a client has it go on."""
    row.launch()
    row.cluster.ssh("scontrol", "update", f"JobId={row.job}", "Requeue=0")
    row.cluster.ssh("scancel", "--batch", "--signal=USR1", row.job)
    shown = row.state("waiting", reason="client")
    assert "Requested operation is presently disabled" in shown["evidence"]["service"]
    row.client.ok("recover", row.run)
    row.until_steps(INTERVAL, starts=2)
    row.end()


def killed_in_slurm(row):
    """Its user has Slurm kill all of its processes."""
    row.launch()
    row.cluster.ssh("scancel", "--signal=KILL", "--full", row.job)


def all_killed(row):
    """All of its processes die at once on its node: the job has failed, and a client has the run go on."""
    row.launch()
    for node in row.cluster.nodes:
        node.enter("pkill", "-KILL", "-u", "ada", check=False)
    row.cluster.until_state(row.job, "FAILED", timeout=SAID_S)
    row.state("interrupted")
    row.client.ok("recover", row.run)
    row.until_steps(INTERVAL, starts=2)
    row.end()


def no_such_partition(row):
    """Slurm refuses the job: nothing is left of the run, there or here."""
    done = row.client.run(
        "--host", "hive", "--profile", "cpu", "--set", "slurm.partition=none", "--", "python", "train.py"
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert "partition" in done.stderr
    assert row.cluster.ssh("ls", ".launch/runs", check=False).split() == []
    assert [path for path in row.client.runs.glob("2*")] == []


def log_out_of_reach(row):
    """Its job may not write to the folder of its run, and ends as it begins."""
    row.launch("--set", 'slurm.extra=["--hold"]', steps=0)
    record = f".launch/runs/{row.run}/record"
    row.cluster.ssh("chmod", "555", record)
    row.cluster.ssh("scontrol", "release", row.job)
    row.state("failed")
    row.cluster.ssh("chmod", "755", record)


TABLE = {
    # what is done: how it ends, in how many starts of the trainer
    time_limit: ("succeeded", "completed", 2),
    time_nearly_up: ("succeeded", "completed", 2),
    preempted: ("succeeded", "completed", 2),
    preempted_with_grace: ("succeeded", "completed", 2),
    requeued_by_hand: ("succeeded", "completed", 2),
    cancelled_in_the_queue: ("stopped", "cancelled-in-slurm", 0),
    cancelled_while_it_runs: ("stopped", "cancelled-in-slurm", 1),
    held: ("succeeded", "completed", 1),
    node_lost: ("succeeded", "completed", 2),
    slurmd_lost: ("succeeded", "completed", 2),
    controller_down: ("succeeded", "completed", 1),
    agent_killed: ("succeeded", "completed", 2),
    requeue_refused: ("succeeded", "completed", 2),
    killed_in_slurm: ("stopped", "cancelled-in-slurm", 1),
    all_killed: ("succeeded", "completed", 2),
    log_out_of_reach: ("failed", "never-started", 0),
    no_such_partition: None,
}
IN_CI = (time_nearly_up, cancelled_while_it_runs)


@pytest.mark.parametrize("fault", TABLE if IS_WHOLE else IN_CI, ids=lambda fault: fault.__name__)
def test_each_fault_ends_as_the_table_says(row, fault, record_property):
    """Nothing is left in the queue, at most one interval is lost, and no trainer goes on past the fence."""
    fault(row)
    if TABLE[fault] is None:
        return
    state, reason, starts = TABLE[fault]
    shown = row.state(state)
    assert shown["reason"] == reason
    until(lambda: row.cluster.ssh("squeue", "--me", "-h") == "", "an empty queue", SAID_S)
    found = row.ledger()
    assert len(found.starts) == starts
    assert found.lost <= INTERVAL
    assert found.beside == 0
    for name, value in {
        "where": row.cluster.share,
        "fault": fault.__doc__.strip().rstrip("."),
        "end": f"{state}, {reason}",
        "starts": starts,
        "again": found.lost,
    }.items():
        record_property(name, value)
