"""The agent's half of a run on several nodes, against a program that says what srun says, and node folders as members write them."""

import os
import signal
import sys

import pytest
from testbed.client import until

from launcher.agent.attempt.training_command import CommandStart
from launcher.agent.diagnosis.remedy import AttemptFailure
from launcher.agent.record.rundir import Run
from launcher.agent.training.members import Members, start_of
from launcher.agent.training.variables import Rendezvous, native_command

HERE = Rendezvous(nodes=2, node=1, ranks=4, host="n1", port=4000, name="run-2")
CASCADE = b"RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:7\n"


@pytest.fixture
def run(tmp_path):
    """A run with one folder and a plan for two nodes."""
    run = Run(str(tmp_path / "runs" / "261126-nodes-aaaaaa"))
    run.make()
    with open(run.plan, "w") as file:
        file.write("{}")
    return run


@pytest.fixture
def folder(run):
    folder = run.new_folder()
    yield folder
    folder.release()


@pytest.fixture
def begun(folder):
    """Start what stands for srun: a Python that is given lines of code."""
    started = []

    def begin(code):
        members = Members(CommandStart([sys.executable, "-c", code], "/", dict(os.environ), 1), folder)
        started.append(members)
        return members

    yield begin
    for members in started:
        with members._child as child:
            child.kill()


def node(folder, name, output=b"", reports=b""):
    """What a member has written by now."""
    made = folder.of_node(name)
    os.makedirs(made.path, exist_ok=True)
    for path, data in ((made.output, output), (made.reports, reports)):
        with open(path, "ab") as file:
            file.write(data)
    return made


SAYS = "import sys; sys.stderr.write({!r}); sys.exit({})"


def end_of(begun, words, code):
    """How a step ended that said these words and exited with this status."""
    members = begun(SAYS.format(words, code))
    status = until(lambda: waited(members), "its end")[0]
    members.from_nodes()
    return members, members.ended(status)


def waited(members):
    status = members.reap()
    return None if status is None else (status,)


def test_lines_are_taken_whole_and_the_last_ones_as_they_are(begun, folder):
    """Two nodes that print at once do not cut each other's lines; what has no end waits for it, until all has ended."""
    members = begun("input()")
    node(folder, "n1", b"one\ntw", b'{"kind":"beat"}\n{"ki')
    node(folder, "n2", b"eins\n50%\r51")
    assert members.from_nodes() == ([b'{"kind":"beat"}'], b"one\neins\n50%\r")
    node(folder, "n1", b"o\n", b'nd":"end"}\n')
    assert members.from_nodes() == ([b'{"kind":"end"}'], b"two\n")
    members._order("go")
    until(lambda: waited(members), "its end")
    assert members.from_nodes() == ([], b"51")


def test_orders_are_lines_of_its_standard_input(begun):
    """A signal would be Slurm's to deal with; a step that does not obey an order to end is ended itself."""
    members = begun("import sys; sys.stderr.write(input() + input()); sys.exit(0)")
    members.send(signal.SIGTERM)
    members.send(signal.SIGKILL)
    assert until(lambda: waited(members), "its end") == (0,)
    assert b"stopkill" in members.from_nodes().lines[0]


def test_a_step_that_does_not_end_is_ended(begun, monkeypatch):
    """It waits for nodes that do not answer."""
    monkeypatch.setattr("launcher.agent.training.members.KILL_S", 0.0)
    members = begun("import time; time.sleep(60)")
    members.send(signal.SIGKILL)
    assert until(lambda: waited(members), "its end") == (signal.SIGKILL,)


def test_the_first_node_that_fails_says_why(begun, folder):
    """Slurm ends the others because of it, and what they saw of it does not count."""
    node(folder, "n1", CASCADE).write_state("failed", exit=1, signal=None, oom_kills=0)
    node(folder, "n2", b"out of ideas\n").write_state("failed", exit=3, signal=None, oom_kills=2)
    words = "srun: error: n2: task 1: Exited with exit code 3\nslurmstepd-n1: error: *** STEP 1.1 ON n1 CANCELLED AT 2026 ***\nsrun: error: n1: task 0: Killed\n"
    members, end = end_of(begun, words, 137)
    assert end == (3, None, b"out of ideas\n", 2)
    assert members.failure() is None


def test_a_member_that_was_killed_counts_as_killed_whatever_the_others_saw(begun, folder):
    """Its own log is what it had printed by then."""
    node(folder, "n1", CASCADE).write_state("failed", exit=1, signal=None, oom_kills=0)
    node(folder, "n2", b"step 7\n").write_state("running")
    _, end = end_of(
        begun, "srun: error: n2: task 1: Killed\nsrun: error: n1: task 0: Exited with exit code 1\n", 137
    )
    assert end == (None, signal.SIGKILL, b"step 7\n", 0)
    _, end = end_of(begun, "srun: error: n2: task 1: Out Of Memory\n", 1)
    assert (end.signal, end.oom_kills) == (signal.SIGKILL, 1)


def test_a_step_that_did_not_start_is_explained_by_slurm(begun):
    """There is nothing else to read."""
    _, end = end_of(begun, "srun: error: Unable to create step for job 5: Invalid account\n", 1)
    assert end == (1, None, b"srun: error: Unable to create step for job 5: Invalid account\n", None)


def test_a_lost_node_is_known_by_slurms_own_words(begun, folder):
    """From the moment that they are said."""
    members = begun(
        "import sys; sys.stderr.write('srun: error: Node failure on n2\\n'); sys.stderr.flush(); input()"
    )
    failure = until(lambda: members.from_nodes() and members.failure(), "the words")
    assert isinstance(failure, AttemptFailure)
    assert (failure.name, failure.line) == ("host-lost", "srun: error: Node failure on n2")


def test_the_step_has_a_member_on_each_node_and_no_options_by_variables(run, folder, monkeypatch):
    """`srun` would read those of the job's script as its options."""
    for name, value in {
        "SLURM_JOB_ID": "7",
        "SLURM_NTASKS": "1",
        "SLURM_STEP_ID": "0",
        "SLURM_CPUS_PER_TASK": "1",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    start = start_of(run, folder, 3, 30.0)
    assert start.words[-5:] == ["member", run.path, "1", "n1", "30.0"]
    assert {"--nodes=3", "--ntasks=3"} <= set(start.words)
    assert start.variables["SLURM_JOB_ID"] == "7"
    assert not {"SLURM_NTASKS", "SLURM_STEP_ID", "SLURM_CPUS_PER_TASK"} & set(start.variables)
    assert start.variables["SRUN_CPUS_PER_TASK"] == "1"  # the job's, of which srun takes no notice


def test_ranks_of_several_nodes_are_started_by_one_torchrun_on_each():
    """With one rank a node, too. How they meet is in variables: everybody can read a command line."""
    words = native_command(["python", "train.py"], "/e/python", 2)
    assert words == ["/e/python", "-m", "launcher_worker.start_ranks", "train.py"]


def test_a_torchrun_joins_the_others():
    """By the variables that it reads where an option is not given; it starts nothing again, and unpickles nothing."""
    assert HERE.variables == {
        "MASTER_ADDR": "n1",
        "MASTER_PORT": "4000",
        "PET_MASTER_ADDR": "n1",
        "PET_MASTER_PORT": "4000",
        "PET_NNODES": "2",
        "PET_NODE_RANK": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_RDZV_BACKEND": "static",
        "PET_RDZV_ID": "run-2",
        "PET_RDZV_CONF": "timeout=600",
        "PET_MAX_RESTARTS": "0",
    }


@pytest.mark.parametrize(
    ("name", "expected"),
    [("node2", "node2"), ("GPU-01.cluster.lab", "gpu-01-cluster-lab"), ("_", "node"), ("n" * 70, "n" * 63)],
)
def test_the_folder_of_a_node_has_a_name_that_is_found_again(folder, name, expected):
    """Names of nodes are the cluster's."""
    made = folder.of_node(name)
    os.makedirs(made.path)
    assert os.path.basename(made.path) == expected
    assert [one.path for one in folder.nodes()] == [made.path]
