"""How many jobs wait before ours, by what a real cluster printed, and by programs that say nothing in time."""

import os
import subprocess
import sys
import time

import pytest
from agent.slurm.test_slurm_jobs import answers
from testbed.client import REPOSITORY, is_gone, until

from launcher.agent.liveness.slurm import queue_position, slurm_programs
from launcher.agent.liveness.slurm.queue_position import QueuePosition, hides_jobs, parse_line
from launcher.agent.liveness.slurm.slurm_jobs import SlurmJob, judge, parse_queue
from launcher.agent.liveness.slurm.slurm_programs import CachedQuery, SlurmSilentError

OPEN = "PrivateData             = none"
PRIVATE = "PrivateData             = jobs"


def words(job, before):
    return judge(job, has_begun=False, before=before).words


def test_jobs_of_a_higher_priority_in_the_same_partitions_are_before_one():
    """Each item of an array is a job; what is held, or begins later, is before nobody."""
    (_, queue), (_, said) = answers("in-line")
    ours = {job.id: job for job in parse_queue(queue.text) if job.state == "PENDING"}
    line = parse_line(said.text)
    in_batch, in_both = sorted(ours)
    assert (line.before(in_batch), line.before(in_both)) == (4, 7)
    assert words(ours[in_batch], 4) == (
        f"its job {in_batch} waits for 1 x a100, 4 before it, to start about 2026-12-03 17:48"
    )
    assert words(ours[in_both], 7).startswith(f"its job {in_both} waits for free nodes, 7 before it, to")


@pytest.mark.parametrize(
    ("line", "before"),
    [
        ("6|batch|50|Priority", 1),
        ("8|batch|50|Priority", 0),
        ("8|batch|51|Priority", 1),
        ("6|batch|49|Priority", 0),
        ("6|other|51|Priority", 0),
        ("6|other,batch|51|None", 1),
        ("6|batch|51|Dependency", 0),
        ("6|batch|51|QOSMaxJobsPerUserLimit", 0),
        ("6|batch|51|AssocGrpGRES", 0),
        ("6_2|batch|51|JobArrayTaskLimit", 0),
        ("6|batch|51|Licenses", 0),
        ("6|batch|51|ReqNodeNotAvail", 0),
        ("6|batch|51|ReqNodeNotAvail, UnavailableNodes:node[1-2]", 0),
        ("6|batch|51|PartitionDown", 0),
        ("6|batch|51|PartitionInactive", 0),
        ("6|batch|51|job requeued in held state", 0),
        ("squeue: error: something", 0),
        ("6|batch|x|Priority", 0),
        ("6_[1-4]|batch|50|Priority", 1),
    ],
)
def test_the_order_is_the_priority_and_then_the_number(line, before):
    assert parse_line(f"{line}\n7|batch|50|Resources\n").before("7") == before


@pytest.mark.parametrize(
    ("reason", "before", "said"),
    [
        ("Resources", 3, "for 2 x a100, 3 before it"),
        ("Resources", 0, "for 2 x a100"),
        ("Priority", 3, "for 2 x a100, 3 before it"),
        ("Priority", None, "for the jobs before it"),
        ("BeginTime", 3, "for the time that it may begin at"),
    ],
)
def test_nothing_is_said_of_others_that_is_not_known(reason, before, said):
    """Nor of a job that is the first."""
    job = SlurmJob("7", "PENDING", reason, resources="gres:gpu:a100:2", nodes="1")
    assert words(job, before) == f"its job 7 waits {said}"


@pytest.mark.parametrize(
    ("asked", "of_22_05", "of_24_11", "said"),
    [
        ("--gres=gpu", "gres:gpu", "gres/gpu", "for 1 x a card"),
        ("--gres=gpu:2", "gres:gpu:2", "gres/gpu:2", "for 2 x a card"),
        ("--gres=gpu:a100:1", "gres:gpu:a100:1", "gres/gpu:a100:1", "for 1 x a100"),
        ("--gpus-per-node=a100:2", "gres:gpu:a100:2", "gres/gpu:a100:2", "for 2 x a100"),
        ("--gpus=2", "N/A", "N/A", "for free nodes"),
        ("--gres=none", "N/A", "N/A", "for free nodes"),
    ],
)
def test_squeue_s_column_of_cards_is_read_as_each_version_prints_it(asked, of_22_05, of_24_11, said):
    """`squeue --format=%b` of jobs that were `asked` for so, as Slurm 22.05.8 and 24.11.5 printed it on 2026-11-30."""
    for printed in (of_22_05, of_24_11):
        job = SlurmJob("7", "PENDING", "Resources", resources=printed, nodes="1")
        assert words(job, None) == f"its job 7 waits {said}", asked


@pytest.mark.parametrize(
    ("said", "hides"),
    [
        (OPEN, False),
        ("PrivateData             = accounts,usage", False),
        (PRIVATE, True),
        (
            "PrivateData             = accounts,cloud,events,jobs,nodes,partitions,reservations,usage,users",
            True,
        ),
        ("", True),
    ],
)
def test_a_cluster_may_hide_the_jobs_of_others(said, hides):
    """One that does not say it counts as if it did."""
    assert hides_jobs(f"Prolog                  = (null)\n{said}\nProctrackType           = x\n") is hides


WAITS = [SlurmJob("7", "PENDING", "Priority"), SlurmJob("8", "PENDING", "Dependency")]


def test_one_question_is_asked_for_all_jobs_that_wait_for_their_turn_and_none_without(programs):
    """The answer is kept for long."""
    programs.put("squeue", "echo '6|batch|9|Resources'; echo '7|batch|8|Priority'")
    programs.put("scontrol", f"echo '{OPEN}'")
    turn = QueuePosition()
    assert turn.before([SlurmJob("8", "PENDING", "BeginTime"), SlurmJob("9", "RUNNING")]) == {}
    assert (len(programs.asked("squeue")), len(programs.asked("scontrol"))) == (0, 0)
    for _ in range(20):
        assert turn.before(WAITS) == {"7": 1}
    assert (len(programs.asked("squeue")), len(programs.asked("scontrol"))) == (1, 1)


@pytest.mark.parametrize("silent", ["squeue", "scontrol"])
def test_a_silent_program_delays_once_and_says_nothing(programs, monkeypatch, silent):
    """However often a run is judged meanwhile; a late answer counts."""
    monkeypatch.setattr(queue_position, "WAIT_S", 0.5)
    go = f"while [ ! -e {programs.folder}/go ]; do sleep 0.05; done\n"
    said = {"squeue": "echo '6|batch|9|Resources'; echo '7|batch|8|Priority'", "scontrol": f"echo '{OPEN}'"}
    for name, script in said.items():
        programs.put(name, (go if name == silent else "") + script)
    turn = QueuePosition()
    began = time.monotonic()
    for _ in range(50):
        assert turn.before(WAITS) == {}
    assert time.monotonic() - began < 2
    (programs.folder / "go").touch()
    until(lambda: turn.before(WAITS) == {"7": 1}, "the answer")
    assert (len(programs.asked("squeue")), len(programs.asked("scontrol"))) == (1, 1)


def test_a_program_that_fails_says_nothing(programs):
    programs.put("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    programs.put("scontrol", f"echo '{OPEN}'")
    assert QueuePosition().before(WAITS) == {}


def test_a_question_that_is_forgotten_leaves_nothing_open(programs):
    """Whoever forgets it before its answer, as each contact does, would run out of descriptors."""
    programs.put("squeue", "exec sleep 60")
    question = CachedQuery(("squeue",), 2.0, 0.1, 30.0)
    before = len(os.listdir("/proc/self/fd"))
    question.begin()
    assert len(os.listdir("/proc/self/fd")) > before
    question.forget()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_program_that_hangs_is_ended_and_said_to_have_given_no_answer(programs, monkeypatch):
    """And not that it ended with -9; it is not asked again at once."""
    monkeypatch.setattr(slurm_programs, "ANSWER_S", 0.3)
    programs.put("squeue", "exec sleep 60")
    question = CachedQuery(("squeue",), 600.0, 30.0, 30.0)
    for _ in range(3):
        with pytest.raises(SlurmSilentError, match=r"^squeue did not answer within 0\.3 s$"):
            question.answer()
    assert len(programs.asked("squeue")) == 1


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "raise KeyboardInterrupt"])
def test_a_program_that_hangs_ends_with_who_has_asked(programs, end):
    """It would stay on the login node."""
    programs.put("squeue", f"echo $$ >{programs.folder}/pid; exec sleep 300")
    code = (
        "import pathlib, sys, time\n"
        "from launcher.agent.liveness.slurm.slurm_programs import CachedQuery\n"
        "CachedQuery(('squeue',), 2.0, 0.1, 30.0).begin()\n"
        f"path = pathlib.Path('{programs.folder}/pid')\n"
        f"while not (path.exists() and path.read_text().strip()): time.sleep(0.01)\n{end}"
    )
    subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, stderr=subprocess.DEVNULL, timeout=60, check=False
    )
    pid = int((programs.folder / "pid").read_text())
    until(lambda: is_gone(pid), "its end", 10)
