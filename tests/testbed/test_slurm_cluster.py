"""The testbed's Slurm itself, asked by its own programs over ssh: what tests of runs on a cluster stand on."""

import contextlib
import os
import socket
import subprocess
from pathlib import Path

import pytest
from testbed.client import missing, processes_of, until
from testbed.missing_part import MissingPartError
from testbed.slurm_cluster import SHARES, slurm_cluster

from launcher.values.slurm_settings import SlurmSettings

pytestmark = pytest.mark.testbed

COUNTING = """\
trap "echo TERM >>ledger" TERM
trap "echo USR1 >>ledger; exit 0" USR1
echo "start ${SLURM_RESTART_COUNT-0} $SLURM_JOB_NODELIST" >>ledger
while :; do sleep 0.1; done
"""
"""A job that writes down its starts and its signals, and ends at USR1 or when it is killed."""
REQUEUED = ("--requeue", "--open-mode=append")


@pytest.fixture
def ledger(slurm):
    """Return what the jobs of a test have written down, as a login node reads it."""

    def read():
        return slurm.ssh("cat", "ledger", check=False).splitlines()

    yield read
    slurm.clear()
    slurm.ssh("rm", "-f", "ledger")


def test_a_job_runs_on_another_machine_with_the_same_home(slurm):
    """It has a name, a machine id and a /tmp of its own; what it writes home is read on either login node."""
    for login in (0, 1):
        slurm.ssh("touch", f"/tmp/of-login-{login}", login=login)
    job = slurm.submit("hostname >where; cat /etc/machine-id >>where; ls -A /tmp >>where", "--nodelist=node2")
    slurm.until_state(job, "COMPLETED")
    name, machine_id, *files = slurm.ssh("cat", "where", login=1).splitlines()
    assert (name, files) == ("node2", [])
    ids = {slurm.ssh("cat", "/etc/machine-id", login=login).strip() for login in (0, 1)}
    assert len({machine_id, *ids}) == 3


def test_the_client_reaches_the_login_nodes_alone(slurm):
    """A login node leads to the others; from this machine no compute node's sshd is heard."""
    node = slurm.nodes[1].address
    assert slurm.ssh("bash", "-c", f"exec 3<>/dev/tcp/{node}/22 && head -c 4 <&3") == "SSH-"
    assert [_first_word(login.address) for login in slurm.logins] == [b"SSH-", b"SSH-"]
    assert _first_word(node) == b""


def _first_word(address):
    with contextlib.suppress(OSError), socket.create_connection((address, 22), 1) as connection:
        return connection.recv(4)
    return b""


@pytest.mark.long
def test_both_login_nodes_may_have_one_name(slurm):
    """They show the same host key and let the same key in, and each sees all the jobs of a user."""
    first, second = slurm.logins
    assert first.host_key.read_bytes() == second.host_key.read_bytes()
    job = slurm.submit("sleep 60", login=1)
    for login in (0, 1):
        assert slurm.ssh("squeue", "--me", "-h", "-o", "%i", login=login).split() == [job]
    assert slurm.ssh("squeue", "--me", "-h", user="bob") == ""


@pytest.mark.long
def test_the_cards_of_a_job_are_slurms(slurm):
    """A job sees the cards that it asked for and no others, and none if it asked for none; three are refused."""
    script = "echo ${CUDA_VISIBLE_DEVICES-none} >cards"
    for flags, cards in ((("--gres=gpu:2",), "0,1"), (("--gres=gpu:a100:1",), "0"), ((), "none")):
        slurm.until_state(slurm.submit(script, *flags), "COMPLETED")
        assert slurm.ssh("cat", "cards").strip() == cards
    with pytest.raises(AssertionError, match="Requested node configuration is not available"):
        slurm.submit(script, "--gres=gpu:3")


@pytest.mark.long
def test_a_node_may_have_cards_and_a_login_node_none(slurm):
    """nvidia-smi is found on the node alone, also by a job that inherits no PATH."""
    query = "nvidia-smi --query-gpu=name --format=csv,noheader,nounits"
    with slurm.nodes[1].carded("a100_40gb", "a100_40gb"):
        job = slurm.submit(f"{query} >cards", "--nodelist=node2", "--export=NIL")
        slurm.until_state(job, "COMPLETED")
        assert slurm.ssh("cat", "cards").splitlines() == ["NVIDIA A100-PCIE-40GB"] * 2
        for away in (("srun", "--nodelist=node1", "sh", "-c"), ("sh", "-c")):
            assert slurm.ssh(*away, "command -v nvidia-smi || echo none") == "none\n"
    job = slurm.submit(query, "--nodelist=node2")
    assert slurm.until_state(job, "FAILED")["ExitCode"] == "127:0"


@pytest.mark.long
def test_sbatch_takes_our_settings_as_they_are_meant(slurm):
    """Each key is one flag of sbatch, by whose word the job is what was asked for."""
    settings = SlurmSettings(
        partition="batch,short",
        time="1:30",
        nodes=2,
        gres="gpu:a100:1",
        constraint="a100",
        extra=("--exclusive", "--mem=100"),
    )
    job = slurm.job(slurm.submit("true", "--hold", *settings.flags))
    assert settings.time_s == 120
    assert (job["Partition"], job["TimeLimit"], job["NumNodes"]) == ("batch,short", "00:02:00", "2-2")
    assert (job["Features"], job["TresPerNode"], job["MinMemoryNode"]) == ("a100", "gres:gpu:a100:1", "100M")


@pytest.mark.long
def test_one_srun_starts_a_process_on_each_node(slurm):
    """In a job that inherits nothing, srun finds programs by `--export=ALL`; each node has its own card."""
    script = "srun --export=ALL --ntasks-per-node=1 sh -c 'echo $(hostname) $CUDA_VISIBLE_DEVICES' >nodes"
    job = slurm.submit(script, "--nodes=2", "--gres=gpu:1", "--export=NIL")
    slurm.until_state(job, "COMPLETED")
    assert sorted(slurm.ssh("cat", "nodes").splitlines()) == ["node1 0", "node2 0"]


@pytest.mark.long
def test_a_requeued_job_waits_two_minutes_and_starts_again(slurm, ledger):
    """It is told to end, then pending by its begin time, and knows how often it was started before."""
    job = slurm.submit(COUNTING, "--nodelist=node2", *REQUEUED)
    until(ledger, "the job's first line")
    slurm.ssh("scontrol", "requeue", job, login=1)
    found = slurm.until_state(job, "PENDING")
    assert (found["Reason"], found["Restarts"]) == ("BeginTime", "1")
    slurm.start_now(job)
    until(lambda: len(ledger()) == 3, "the second start")
    assert ledger() == ["start 0 node2", "TERM", "start 1 node2"]


@pytest.mark.long
def test_a_signal_reaches_the_script_alone(slurm, ledger):
    """USR1 by `scancel --batch` runs the script's trap; a job that ends with 0 has completed."""
    job = slurm.submit(COUNTING)
    until(ledger, "the job's first line")
    slurm.ssh("scancel", "--batch", "--signal=USR1", job)
    assert slurm.until_state(job, "COMPLETED")["ExitCode"] == "0:0"
    assert ledger()[1:] == ["USR1"]


@pytest.mark.long
def test_a_signal_comes_before_the_time_is_up(slurm, ledger):
    """`--signal=B:USR1@30` of a job of one minute; Slurm looks at its clock every half minute."""
    job = slurm.submit(COUNTING, "--time=1", "--signal=B:USR1@30")
    slurm.until_state(job, "COMPLETED", timeout=70)
    assert ledger()[1:] == ["USR1"]


@pytest.mark.long
def test_a_job_of_another_partition_makes_way_and_comes_back(slurm, ledger):
    """`batch` takes the nodes from `spare`, whose job is told to end, and waits for its next turn."""
    early = slurm.submit(COUNTING, "--partition=spare", "--nodes=2", "--exclusive", *REQUEUED)
    until(ledger, "the job's first line")
    late = slurm.submit("true", "--nodes=2", "--exclusive")
    slurm.until_state(late, "COMPLETED", timeout=60)
    found = slurm.until_state(early, "PENDING")
    assert (found["Reason"], found["Restarts"]) == ("BeginTime", "1")
    assert ledger() == ["start 0 node[1-2]", "TERM"]


@pytest.mark.long
def test_time_to_make_way_is_told_to_steps_and_not_to_the_script(slurm, ledger):
    """What srun started gets TERM as the time begins; the script itself gets it when the time is over."""
    step = "trap 'echo step TERM >>ledger; exit' TERM; while :; do sleep 0.1; done"
    script = COUNTING.replace("while", f'srun sh -c "{step}" &\nwhile', 1)
    with slurm.graced(5):
        early = slurm.submit(script, "--partition=spare", "--exclusive", *REQUEUED)
        until(ledger, "the job's first line")
        slurm.submit("true", "--nodes=2", "--exclusive")
        until(lambda: "step TERM" in ledger(), "the step to be told")
        assert slurm.job(early)["Restarts"] == "0"
        slurm.until_state(early, "PENDING", timeout=60)
    assert ledger()[1:] == ["step TERM", "TERM"]


@pytest.mark.long
def test_an_ended_job_is_remembered_without_accounting(slurm):
    """`scontrol` knows how a job ended that `squeue` lists no more; `sacct` says that it is off."""
    failed = slurm.submit("exit 3")
    cancelled = slurm.submit("sleep 60", "--hold")
    slurm.ssh("scancel", cancelled)
    assert slurm.until_state(failed, "FAILED")["ExitCode"] == "3:0"
    slurm.until_state(cancelled, "CANCELLED")
    assert slurm.ssh("squeue", "--me", "-h") == ""
    with pytest.raises(AssertionError, match="Slurm accounting storage is disabled"):
        slurm.ssh("sacct", "-j", failed)


@pytest.mark.long
def test_a_drained_node_takes_no_job(slurm):
    """A job that fits nowhere else waits, and starts once the node takes jobs again."""
    with slurm.drained(slurm.nodes[1]):
        job = slurm.submit("true", "--nodes=2")
        until(lambda: "DRAINED" in slurm.ssh("squeue", "--me", "-h", "-o", "%r"), "the reason")
    slurm.until_state(job, "COMPLETED")


@pytest.mark.long
def test_a_node_boots_again_and_takes_jobs(slurm):
    """It is the same machine with another boot id."""
    node = slurm.nodes[1]
    ids = [slurm.ssh("srun", "--nodelist=node2", "cat", "/etc/machine-id", "/proc/sys/kernel/random/boot_id")]
    slurm.reboot(node)
    until(slurm.is_idle, "the node to be back")
    ids.append(
        slurm.ssh("srun", "--nodelist=node2", "cat", "/etc/machine-id", "/proc/sys/kernel/random/boot_id")
    )
    (machine, boot), (same_machine, other_boot) = (text.split() for text in ids)
    assert machine == same_machine
    assert boot != other_boot


@pytest.mark.long
def test_a_cluster_may_refuse_to_start_a_job_again(slurm):
    """Its settings say so for jobs that do not ask for it; a job that does may be requeued."""
    with slurm.configured(JobRequeue="0"):
        job = slurm.submit("sleep 60")
        slurm.until_state(job, "RUNNING")
        with pytest.raises(AssertionError, match="Requested operation is presently disabled"):
            slurm.ssh("scontrol", "requeue", job)
        asking = slurm.submit("sleep 60", *REQUEUED)
        slurm.until_state(asking, "RUNNING")
        slurm.ssh("scontrol", "requeue", asking)


@pytest.mark.long
def test_jobs_go_on_while_no_controller_runs(slurm, ledger):
    """`squeue` tries in vain for 20 s; a controller that starts again knows the job, which did not notice."""
    job = slurm.submit(COUNTING)
    until(ledger, "the job's first line")
    with slurm.no_controller(), pytest.raises(AssertionError, match="124"):
        slurm.ssh("timeout", "1", "squeue", "--me", login=1)
    assert slurm.until_state(job, "RUNNING")["Restarts"] == "0"
    assert len(ledger()) == 1


@pytest.mark.long
def test_a_silent_controller_answers_late(slurm):
    """It takes the question, and answers once it goes on."""
    with slurm.silent_controller():
        words = [*slurm.logins[1].ssh_words(), "squeue --me --noheader; echo rc $?"]
        asking = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        with pytest.raises(subprocess.TimeoutExpired):
            asking.wait(timeout=2)
    assert asking.communicate(timeout=30)[0] == "rc 0\n"


@pytest.mark.long
@pytest.mark.parametrize("what", ["node", "slurmd", "cable"])
def test_a_job_of_a_lost_node_is_started_elsewhere(slurm, ledger, what):
    """A node that dies takes its copy of the job with it; one that is only out of reach lets the first copy go on."""
    node = slurm.nodes[1]
    with slurm.drained(slurm.nodes[0]):
        job = slurm.submit(COUNTING, *REQUEUED)
        until(ledger, "the job's first line")
    if what == "node":
        node.kill()
    elif what == "slurmd":
        node.end_daemon("slurmd", by="KILL")
    else:
        node.set_link("down")
    try:
        found = slurm.until_state(job, "PENDING", timeout=90)
        assert (found["Reason"], found["Restarts"]) == ("BeginTime", "1")
        slurm.start_now(job)
        until(lambda: ledger()[-1] == "start 1 node1", "the second start")
        first_copy_runs = node.pid and bool(
            node.enter("pgrep", "-u", "ada", "-f", "slurm_script", check=False)
        )
        assert first_copy_runs == (what != "node")
    finally:
        slurm.reboot(node)


@pytest.mark.long
def test_accounting_on_demand():
    """With a database `sacct` knows all that a job was, and so does a user who asks on the other login node."""
    try:
        with slurm_cluster(has_accounting=True, name="counted") as cluster:
            job = cluster.submit("exit 3", "--job-name=launch-x", "--comment=launch:x")
            cluster.until_state(job, "FAILED")
            words = ("sacct", "-n", "-P", "-X", "-D", "-j", job, "-o", "JobName,State,ExitCode,Cluster")
            until(
                lambda: cluster.ssh(*words, login=1) == "launch-x|FAILED|3:0|counted\n", "the row of the job"
            )
    except MissingPartError as error:
        missing(str(error))


@pytest.mark.long
@pytest.mark.parametrize("share", SHARES)
def test_which_locks_cross_from_node_to_node(share):
    """flock on a shared file refuses another machine, unless the home is FUSE with locks of each machine."""
    _check_fuse(share)
    try:
        with slurm_cluster(share) as cluster:
            cluster.submit("exec flock held sh -c 'echo >taken; sleep 60'", "--nodelist=node1")
            until(lambda: "taken" in cluster.ssh("ls"), "the lock to be taken")
            crosses = {}
            for node in ("node1", "node2"):
                words = ("srun", f"--nodelist={node}", "--overcommit", "flock", "-n", "held", "true")
                crosses[node] = cluster.ssh("sh", "-c", f"{' '.join(words)} 2>&1 || echo refused")
            assert "refused" in crosses["node1"]
            assert ("refused" in crosses["node2"]) == (share != "fuse")
    except MissingPartError as error:
        missing(str(error))


def test_nothing_is_left_of_a_cluster():
    """Its processes end with it, those of a job too; its bridges, mounts and folders are removed."""
    _check_fuse("fuse")
    try:
        with slurm_cluster("fuse") as cluster:
            cluster.submit("sleep 600", "--nodes=2")
            until(lambda: cluster.ssh("squeue", "-h", "-o", "%T").strip() == "RUNNING", "the job")
            pids = [machine.pid for machine in cluster.machines]
            assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    except MissingPartError as error:
        missing(str(error))
    assert processes_of(cluster.folder) == []
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not [
        path
        for path in Path("/sys/class/net").iterdir()
        if path.name.startswith((cluster.bridge, cluster.nodes_bridge))
    ]
    assert str(cluster.folder) not in Path("/proc/mounts").read_text()
    assert not cluster.folder.exists()
    assert not cluster.homes.exists()


def _check_fuse(share):
    if share != "plain" and not os.access("/dev/fuse", os.W_OK):
        pytest.skip("the kernel has no FUSE, or not for this user")
