"""A job that has just begun: the answer about the queue that is at hand may be older, and still have it waiting."""

import json
import os

import pytest

from launcher.agent.liveness.run_state import state_of
from launcher.agent.liveness.slurm import slurm_jobs, slurm_liveness
from launcher.agent.liveness.slurm.slurm_programs import CachedQuery
from launcher.agent.record.files import write_durably
from launcher.agent.record.rundir import Run

RUN = "261126-train-aaaa22"


class Queue:
    """The answers about the queue: the one at hand has the job waiting, one that is asked for now has it running."""

    def __init__(self):
        self.state = "PENDING"

    def answer(self):
        """Return the answer at hand."""
        return f"7|{self.state}|None|||1||launch:{RUN}\n"

    def is_late(self):
        """Whether it has been waited for in vain."""
        return False

    def answer_now(self, _timeout_s=0.0):
        """Ask."""
        self.state = "RUNNING"
        return self.answer()


@pytest.fixture
def queued(tmp_path, monkeypatch):
    """A run whose job is in the queue, on a cluster that knows it as job 7."""
    probe = slurm_liveness.SlurmLiveness()
    monkeypatch.setattr(slurm_liveness, "PROBE", probe)
    monkeypatch.setattr(slurm_liveness, "cluster_name", lambda: "hive")
    probe._queue = Queue()
    run = Run(str(tmp_path / "runs" / RUN))
    run.make()
    folder = run.new_folder()
    record = {"kind": "prepare", "place_id": "slurm:hive", "runtime": {"kind": "slurm"}}
    run.write_prepared(folder, record)
    folder.write_state("reserved")
    folder.release()
    write_durably(run.slurm, json.dumps({"jobs": ["7"]}))
    return run


@pytest.mark.parametrize("written", [None, "preparing", "running"])
def test_a_first_attempt_that_has_just_begun_does_not_resume(queued, written):
    """Also one whose agent has made its folder, and has not written a state yet."""
    assert state_of(queued)["state"] == "reserved"
    folder = queued.new_folder()
    if written is not None:
        folder.write_state(written)
    assert state_of(queued)["state"] == (written or "preparing")
    folder.release()


def test_what_waits_again_after_an_attempt_resumes(queued):
    """By the same answer: its agent has written how the attempt ended."""
    folder = queued.new_folder()
    folder.write_state("resuming", "ended-by-slurm")
    folder.release()
    assert state_of(queued)["state"] == "resuming"
    assert slurm_liveness.PROBE._queue.state == "PENDING"


def test_a_job_that_failed_without_a_log_names_none(queued):
    """As one whose flags no node can serve: Slurm ends it before its script begins."""
    slurm_liveness.PROBE._queue.state = "FAILED"
    told = state_of(queued)
    assert (told["state"], told["reason"]) == ("failed", "never-started")
    assert told["evidence"]["service"] == "its job 7 is FAILED; it has written no log"
    write_durably(queued.slurm_log, "loading\nno module cuda/99\n")
    assert state_of(queued)["evidence"]["service"].endswith("; its log ends: no module cuda/99")


def test_a_stop_waits_for_a_silent_slurm_once_and_a_sweep_ends_the_job_later(queued, programs, monkeypatch):
    """The request stays on record: whoever sweeps once there is an answer cancels the job that waits."""
    queue = slurm_liveness.PROBE._queue = CachedQuery(slurm_jobs.QUEUE, 2.0, 0.1, 30.0)
    programs.put("squeue", "exec sleep 60")
    assert state_of(queued)["evidence"]["silent"]
    queued.write_wish("cancel")
    slurm_liveness.PROBE.wake(queued)
    slurm_liveness.PROBE.forget(queued)
    assert state_of(queued)["evidence"]["silent"]
    assert len(programs.asked("squeue")) == 1
    root = os.path.dirname(os.path.dirname(queued.path))
    row = f"7|PENDING|{slurm_jobs.name_of(RUN)}|launch:{RUN}|{queued.path}"
    programs.put("squeue", f"echo '{row}'")
    programs.put("scancel", "exit 0")
    (orphan,) = slurm_liveness.PROBE.strays(root)
    assert (orphan.name, orphan.run, orphan.why) == ("7", RUN, "its run was asked to stop")
    assert orphan.end()
    assert len(programs.asked("scancel")) == 1
    queue.forget()
    queued.write_wish("run")
    assert slurm_liveness.PROBE.strays(root) == []
