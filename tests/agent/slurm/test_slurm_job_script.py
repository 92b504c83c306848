"""The script of a job on two nodes whose agent has died: no other starts while something is left of it, nor once the job is over.

Slurm's programs are stand-ins that a test writes; `srun` is the agent, and notes each start.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.client import is_gone, until

from launcher.agent.record.rundir import Run
from launcher.agent.system import token_processes
from launcher.transport.agent_file import agent_file

LEFT = "echo '7.1|launch-members'"
NOT_ENDED = 75
"""The exit status of a job whose agents have recorded no end, as the stand-ins here."""
SILENT = "echo 'squeue: error: this node may not ask' >&2; exit 1"


class Script:
    """The script of a run's job, as Slurm starts it."""

    def __init__(self, folder, programs):
        self.folder = folder
        self.asked = programs.asked
        self.put = programs.put
        self.run = Run(str(folder / "root" / "runs" / "261126-nodes-aaaaaa"))
        self.run.make()
        Path(self.run.plan).write_text(json.dumps({"nodes": ["node1", "node2"]}))
        Path(self.run.slurm).write_text(json.dumps({"version": 1, "jobs": ["7"], "asked": None}))
        (folder / "agent.pyz").write_bytes(agent_file().data)
        self.put("srun", "exit 9")
        self.put("scancel", "")
        self.put("scontrol", "")
        self.process = None

    def start(self):
        """Start it."""
        variables = {"SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "testbed"}
        with Path(self.run.slurm_log).open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", str(self.folder / "agent.pyz"), "job", self.run.path],
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def until_it_waits(self):
        """Start it, and wait until it has asked twice for what its first agent has left."""
        self.start()
        until(lambda: len(self.asked("squeue")) >= 2, "a question about the members")
        assert len(self.asked("srun")) == 1

    def said(self):
        """What it has printed."""
        return Path(self.run.slurm_log).read_text()


@pytest.fixture
def script(tmp_path, programs):
    """The script of a run that nobody has started yet; it is ended afterwards."""
    made = Script(tmp_path, programs)
    yield made
    if made.process is not None and made.process.poll() is None:
        made.process.kill()
        made.process.wait()


@pytest.mark.parametrize("answer", [LEFT, SILENT])
def test_no_agent_starts_once_the_job_is_over(script, answer):
    """As by a preemption while a stopped member is left: two trainers of one rank would run on through the grace."""
    script.put("squeue", answer)
    script.until_it_waits()
    script.process.send_signal(signal.SIGTERM)
    assert script.process.wait(timeout=180) != 0
    assert len(script.asked("srun")) == 1, script.said()


def test_an_agent_starts_once_the_members_of_the_one_before_have_ended(script):
    """What is left of them is killed, by the number of its step."""
    script.put("squeue", LEFT)
    script.until_it_waits()
    assert "--signal=KILL 7.1" in script.asked("scancel")
    script.put("srun", "exit 0")
    script.put("squeue", "echo '7.batch|batch'")
    assert script.process.wait(timeout=180) == NOT_ENDED
    assert len(script.asked("srun")) == 2


def test_nothing_is_asked_before_the_first_agent(script):
    """A node where `squeue` does not answer would never begin: it has no members of an earlier agent."""
    script.put("squeue", SILENT)
    script.put("srun", "exit 0")
    script.start()
    assert script.process.wait(timeout=180) == NOT_ENDED
    assert (len(script.asked("srun")), script.asked("squeue")) == (1, [])


@pytest.mark.parametrize("answer", [LEFT, SILENT])
def test_a_wish_to_stop_ends_the_wait_for_members(script, answer):
    """Nobody is there to save anything: the run has ended by its wish, and its job's end is that of its members."""
    script.put("squeue", answer)
    script.until_it_waits()
    script.run.write_wish("stop")
    script.process.send_signal(signal.SIGUSR1)
    assert script.process.wait(timeout=180) == NOT_ENDED
    assert script.asked("scancel")[-1] == "7"
    assert len(script.asked("srun")) == 1


def test_a_job_whose_time_is_nearly_up_while_members_are_left_is_started_again(script):
    """By Slurm, which ends them before."""
    script.put("squeue", LEFT)
    script.until_it_waits()
    script.process.send_signal(signal.SIGUSR1)
    until(lambda: "requeue 7" in script.asked("scontrol"), "the requeue")
    assert script.process.poll() is None  # one that ended early would count as failed
    script.process.send_signal(signal.SIGTERM)
    assert script.process.wait(timeout=180) != 0
    assert len(script.asked("srun")) == 1


def test_what_the_last_agent_said_is_no_argument_of_the_next_one(script):
    """Everybody on the node can read those, and only the user its variables."""
    script.put("squeue", "exit 0")
    dies_once = f"test -e {script.folder}/died && exec printenv LAUNCH_SEEN; touch {script.folder}/died"
    script.put("srun", f"{dies_once}; echo hunter2 >&2; exit 9")
    script.start()
    assert script.process.wait(timeout=180) == NOT_ENDED
    first, second = script.asked("srun")
    assert first == second
    seen = json.loads(script.said().splitlines()[-1])
    assert (seen["keeper"]["exit"], seen["keeper"]["said"]) == (9, "hunter2")


@pytest.mark.parametrize(
    ("state", "evidence", "status"),
    [
        ("succeeded", {"exit": 0, "signal": None}, 0),
        ("succeeded", {"exit": 1, "signal": None}, 0),  # the worker had reported the end of its training
        ("failed", {"exit": 3, "signal": None}, 3),
        ("failed", {"exit": None, "signal": 9}, 137),
        ("failed", {"exit": 0, "signal": None}, 1),  # by the guard
        ("failed", {"exit": 256, "signal": "9"}, 1),
        ("failed", {}, 1),
        ("waiting", {"exit": 0}, NOT_ENDED),
        ("stopped", {"exit": 0, "signal": None}, 1),
    ],
)
def test_slurm_reports_the_status_of_the_script(script, state, evidence, status):
    """Of a run that was stopped its job is cancelled: the status does not count then."""
    script.run.new_folder().write_state(state, evidence=evidence)
    script.put("srun", "exit 0")
    script.start()
    assert script.process.wait(timeout=180) == status
    assert script.asked("scancel") == (["7"] if state == "stopped" else [])


def test_the_job_of_an_ended_run_that_slurm_starts_again_is_cancelled(script, monkeypatch):
    """As by a cluster's RequeueExit: it would begin and fail for ever, though nothing trains."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    script.run.new_folder().write_state("failed", evidence={"exit": 3})
    script.start()
    assert script.process.wait(timeout=180) == 3
    assert (script.asked("srun"), script.asked("scancel")) == ([], ["7"])


def test_a_job_that_starts_again_has_not_ended(script):
    """As one that was requeued after its end: what is on record of that does not count any more."""
    Path(script.run.slurm_end).write_text('{"version":1,"job":"7","state":"CANCELLED"}')
    script.put("srun", "exit 0")
    script.start()
    assert script.process.wait(timeout=180) == NOT_ENDED
    assert not Path(script.run.slurm_end).exists()


def ended_on_wrong_cards(script):
    """The evidence of a run planned for an A100, on a node that has what `nvidia-smi` says."""
    cards = {"names": ["NVIDIA A100"], "memory_mib": None, "count": 1, "title": "A100"}
    Path(script.run.plan).write_text(json.dumps({"nodes": ["node1"], "slurm": {"cards": [cards]}}))
    script.start()
    assert script.process.wait(timeout=180) == 1
    assert script.asked("srun") == []
    evidence = script.run.last().read_state()["evidence"]
    assert evidence["class"] == "wrong-card"
    return evidence


def test_other_cards_than_planned_are_asked_for_and_not_planned_again_for_those_who_did(script, cards):
    """A plan may be one for all cards that the partition names; it does not say so."""
    cards.put("t4")
    evidence = ended_on_wrong_cards(script)
    assert evidence["why"] == "other cards came; the plan was made for A100"
    always, named = evidence["mend"].split("; ")
    assert "`gres` or `constraint`" in always
    assert named.startswith("if you named a profile, --profile auto")


def test_a_node_without_a_card_is_left_out_or_the_run_trains_without_one(script):
    """Other names for the cards would not help: the node is broken, or the partition has none."""
    script.put("nvidia-smi", "exit 1")
    evidence = ended_on_wrong_cards(script)
    assert evidence["why"] == "no card came; the plan was made for A100"
    assert f'"--exclude={os.uname().nodename}"' in evidence["mend"]
    assert "--profile cpu" in evidence["mend"]


@pytest.mark.parametrize(("says", "own"), [("3.9", False), ("3.9", True), ("", False), ("3.11", False)])
def test_an_environment_of_another_python_is_named_before_the_script_starts(script, says, own):
    """Its packages would be missing one by one, each as if nobody had asked for it."""
    folder = script.folder / "env"
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.2\n")
    python = folder / "bin" / "python"
    python.write_text(f"#!/bin/sh\n{f'echo {says}' if says else 'exit 1'}\n")
    python.chmod(0o755)
    plan = {"nodes": ["node1"], **({"host_environment": str(folder)} if own else {})}
    Path(script.run.plan).write_text(json.dumps(plan))
    first = script.run.new_folder()
    Path(first.attempt).write_text(
        json.dumps({"kind": "prepare", "runtime": {"kind": "slurm", "interpreter": str(python)}})
    )
    first.write_state("reserved")
    script.put("srun", "exit 0")
    script.start()
    fits = says == "3.11"
    assert script.process.wait(timeout=180) == (NOT_ENDED if fits else 1), script.said()
    assert len(script.asked("srun")) == fits
    if not fits:
        evidence = script.run.last().read_state()["evidence"]
        assert evidence["class"] == "wrong-python"
        assert evidence["line"].endswith("is Python 3.9" if says else "is no program that starts")
        assert ("slurm.build=job" in evidence["mend"]) == (not own)


def orphan(token):
    """Start a process with a token whose parent ends at once; return its pid."""
    env = {**os.environ, token_processes.OF_RUN: token}
    words = ["sh", "-c", "sleep 600 >/dev/null & echo $!"]
    return int(subprocess.run(words, env=env, stdout=subprocess.PIPE, check=True).stdout)


def test_what_an_earlier_start_of_the_job_has_left_on_its_node_is_ended_first(script):
    """Its agent and Slurm's own process for the step are gone: two trainers would run side by side. Another run's stays."""
    token = secrets.token_hex()  # of no test that runs beside this one
    Path(script.run.token).write_text(token)
    ours, other = orphan(token), orphan("token-of-another")
    try:
        script.put("srun", f"grep -q sleep /proc/{ours}/cmdline && exit 9; exit 0")
        script.start()
        until(lambda: is_gone(ours), "the end of the orphan")
        assert script.process.wait(timeout=180) == NOT_ENDED
        assert not is_gone(other)
        assert f"of an earlier start of the job on this node: pid {ours}\n" in script.said()
    finally:
        for pid in (ours, other):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
