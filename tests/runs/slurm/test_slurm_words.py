"""What a client says of runs of a Slurm cluster, from its own copies of them alone."""

import json
import re
import shutil
from types import SimpleNamespace

import pytest

from launcher.backends.base.probing import Probed
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.backends.slurm.slurm_probing import SlurmProbing
from launcher.backends.slurm.slurm_runtime import NOT_SUBMITTED, SlurmRuntime
from launcher.batch.batch_queue import NewItem, make_queue
from launcher.batch.batch_status import rows_of, state_of
from launcher.batch.input.batch_definition import Rules
from launcher.batch.queued_item import ItemState
from launcher.cli.commands.hosts import hosts
from launcher.cli.commands.look import ps
from launcher.cli.follow.log_view import JsonLogView, LogView
from launcher.cli.follow.plain_view import PlainView
from launcher.config.lookup import Lookup
from launcher.copy.local_copy import LocalCopy
from launcher.copy.record_sync import News
from launcher.errors import AgentError, RefusedError
from launcher.runs.follow import following
from launcher.runs.follow.diagnosing import diagnosis_of
from launcher.runs.follow.summaries import remembered
from launcher.runs.launch import launching
from launcher.runs.run_listing import ListedRun
from launcher.values.facts import Facts
from launcher.values.plan import Finding, Submission
from launcher.values.record import PlanSummary, RunState, RuntimeRecord, Summary
from launcher.values.slurm_settings import SlurmSettings

RUN = "261126-train-w8q2zz"
BEGAN = 1_000_000.0


@pytest.fixture
def local_copy(tmp_path, monkeypatch):
    """The copy of a run of a cluster, with no folder yet."""
    monkeypatch.chdir(tmp_path)
    local_copy = LocalCopy(RUN, tmp_path / "runs")
    local_copy.bind_seen(
        SlurmHost(name="hive", address="login1", user="ada", runtime="slurm", slurm=SlurmSettings()),
        "",
        BEGAN,
    )
    plan = {"job": "train", "steps": 900, "allocation": {"how": "scheduled", "cards": 1, "kind": "h200"}}
    (local_copy.folder / "plan.json").write_text(json.dumps(plan))
    folder(local_copy, "prepare", BEGAN, state="reserved", time=BEGAN)
    return local_copy


def folder(local_copy, kind, began, **state):
    """Add a numbered folder."""
    path = local_copy.folder / f"{len([*local_copy.folder.glob('0*')]) + 1:04d}"
    path.mkdir()
    (path / "attempt.json").write_text(json.dumps({"kind": kind, "time": began}))
    (path / "state.json").write_text(json.dumps(state))
    return path


def end(local_copy, capsys, **state):
    """Return what a person reads at the end of a run that was followed."""
    following.finish(local_copy, RunState(**state), PlainView())
    return capsys.readouterr().err


def test_the_end_of_a_followed_run_counts_no_time_in_the_queue(local_copy, capsys):
    """It is the time that `ps` shows: a run that waited four minutes and trained for 150 s took 2:30."""
    ended = {"state": "succeeded", "reason": "completed", "time": BEGAN + 394}
    folder(local_copy, "attempt", BEGAN + 244, **ended)
    assert re.search(r"succeeded 2:30\b", end(local_copy, capsys, **ended))
    assert remembered(local_copy).took_s == 150


def test_a_job_that_slurm_has_ended_is_said_to_get_a_new_job(local_copy, capsys):
    """And no container."""
    folder(local_copy, "attempt", BEGAN, state="running", time=BEGAN)
    said = end(local_copy, capsys, state="waiting", reason="client", time=BEGAN + 60)
    assert "launch recover w8q2zz     submits a new job" in said
    assert "container" not in said


@pytest.mark.parametrize(
    ("told", "name", "why", "mend"),
    [
        (
            {"state": "failed", "reason": "never-started", "evidence": {"service": "its job 12 is FAILED (BadConstraints); it has written no log"}},
            "never-started",
            "BadConstraints",
            "can a node give what `extra` asks for?   launch probe --host hive",
        ),
        (
            {"state": "failed", "reason": "never-started", "evidence": {"service": "its job 12 is FAILED (NonZeroExitCode); its log ends: no module cuda"}},
            "never-started",
            "no module cuda",
            f"ssh ada@login1 cat '~/.launch/runs/{RUN}/record/slurm.log'",
        ),
        (
            {"state": "waiting", "reason": "client", "evidence": {"service": "its job 12 is TIMEOUT"}},
            "ended-by-slurm",
            "its limit of time was reached: its job 12 is TIMEOUT",
            "launch recover w8q2zz     submits a new job",
        ),
        (
            {"state": "waiting", "reason": "client", "checkpoint": 5, "evidence": {"service": "its job 12 is NODE_FAIL"}},
            "ended-by-slurm",
            "for good: its job 12 is NODE_FAIL",
            "launch recover w8q2zz     submits a new job, which continues from step 5",
        ),
        (
            {"state": "stopped", "reason": "cancelled-in-slurm"},
            "cancelled-in-slurm",
            "its job was cancelled in Slurm",
            "launch rerun w8q2zz ",
        ),
        (
            {"state": "stopped", "reason": "cancelled-in-slurm", "checkpoint": 15},
            "cancelled-in-slurm",
            "its job was cancelled in Slurm",
            "launch resume w8q2zz     continues from step 15",
        ),
    ],
)  # fmt: skip
def test_what_slurm_has_done_to_a_run_is_its_diagnosis(local_copy, told, name, why, mend):
    """With Slurm's own words, and the command that goes on; also if an attempt has ended before, with nothing in its log."""
    if told["reason"] != "never-started":
        attempt = folder(
            local_copy, "attempt", BEGAN, state="resuming", reason="ended-by-slurm", time=BEGAN + 60
        )
        (attempt / "log.txt").write_text("step 1\n")
    local_copy.told = RunState(**told)
    found = diagnosis_of(local_copy)
    assert (found.name, found.line) == (name, None)
    assert why in found.why
    assert mend in found.mend


def test_a_run_whose_controller_is_down_is_called_alike_by_its_follower_and_in_ps(capsys):
    """It was last seen running; that its answer is older with each look is said once."""
    view = PlainView()
    for seconds in (2, 6, 9):
        evidence = {"service": f"squeue has not answered for {seconds} s", "silent": True}
        view.news(News(RunState(state="running", evidence=evidence), [], [], False, "", False, 0))
    assert capsys.readouterr().err.splitlines() == ["  · last seen running; squeue has not answered for 2 s"]
    row = ListedRun("hive", Summary(run=RUN, state="running", evidence=evidence))
    assert (ps._state(row), ps._why(row)) == ("running", "squeue has not answered for 9 s")


def test_that_a_script_cannot_continue_is_said_before_the_first_run_of_its_job_on_a_host(local_copy):
    """Each launch of a plain script would repeat it."""
    notes = [
        Finding(level="note", code="cannot-go-on", message=""),
        Finding(level="note", code="short-time", message=""),
    ]
    for job, host, said in (("Train", "hive", notes[1:]), ("train", "lab", notes), ("eval", "hive", notes)):
        assert [*launching._not_said_before(notes, job, host)] == said


NEVER_BEGAN = {
    "state": "failed",
    "reason": "never-started",
    "evidence": {"service": "its job 12 is FAILED; its log ends: cuda/99", "log": "Lmod error:\ncuda/99"},
}


def test_the_log_of_a_run_that_never_began_is_its_jobs(local_copy, capsys):
    """No attempt has one, and the end of the run names `launch logs`."""
    assert "next     launch logs w8q2zz" in end(local_copy, capsys, **NEVER_BEGAN)
    local_copy.told = RunState(**NEVER_BEGAN)
    view = LogView(local_copy)
    view.show()
    view.show()
    assert capsys.readouterr().out == "Lmod error:\ncuda/99\n"
    JsonLogView(local_copy).show()
    said = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    assert said == ["Lmod error:", "cuda/99"]


def test_a_rerun_of_a_run_that_never_began_is_shown_without_its_modules(local_copy, monkeypatch):
    """The same request would end alike."""
    asked = Submission(flags=("--partition=batch", "--mem=1T"), modules=("cuda/99",))
    monkeypatch.setattr(LocalCopy, "whole_plan", lambda _self: SimpleNamespace(slurm=asked))
    local_copy.told = RunState(**NEVER_BEGAN)
    again = "launch rerun w8q2zz --set 'slurm.modules=[]' --set 'slurm.extra=[]'\n"
    assert again in diagnosis_of(local_copy).mend


def test_a_job_that_slurm_does_not_start_again_at_its_limit_has_reached_that(local_copy):
    """Slurm's words are about the start alone then."""
    folder(local_copy, "attempt", BEGAN, state="resuming", reason="session-limit", time=BEGAN + 60)
    words = "its job 12 is not started again: Requested operation is presently disabled for job 12"
    local_copy.told = RunState(state="waiting", reason="client", evidence={"service": words})
    assert diagnosis_of(local_copy).why == f"its limit of time was reached: {words}"


def test_a_cancel_is_not_taken_for_a_preemption(local_copy):
    """The training of a cancelled job ends by a signal, as if its node were taken."""
    evidence = {"exit": None, "signal": 15}
    folder(local_copy, "attempt", BEGAN, state="resuming", time=BEGAN + 60, evidence=evidence)
    local_copy.told = RunState(state="stopped", reason="cancelled-in-slurm")
    assert diagnosis_of(local_copy).name == "cancelled-in-slurm"


@pytest.mark.parametrize("state", ["reserved", "resuming"])
def test_a_job_that_waits_for_ever_is_to_be_stopped(state):
    """And is not to be watched."""
    said = "its job 13 waits for ever: its partition has no such nodes"
    row = ListedRun("hive", Summary(run=RUN, state=state, evidence={"service": said}))
    assert ps._why(row) == f"{said}   launch stop w8q2zz"


def test_a_command_that_follows_such_a_job_names_the_stop_too(local_copy, capsys):
    """As does `launch logs`."""
    waits = RunState(state="reserved", evidence={"service": "its job 13 waits for ever: no such nodes"})
    view = PlainView()
    view.begin(RUN, PlanSummary(), [])
    view.news(News(waits, [], [], is_all=True))
    LogView(local_copy).waits(waits)
    assert capsys.readouterr().err.count("no such nodes   launch stop w8q2zz\n") == 2


NODES = {"cpus": 4, "memory_mib": 4096.0, "gres": [{"name": "gpu", "type": "a100", "count": 2}]}
FACTS = {
    "platform": "linux", "machine": "x86_64", "host_id": "0", "boot_id": "0", "user": "u", "hostname": "login1", "cpus": 2,
    "free_gb": 100.0, "root": "/home/u/.launch", "python": "3.11.2",
    "gpus": [{"index": 0, "uuid": "expected-0", "name": "NVIDIA A100-PCIE-40GB", "memory_mib": 40960.0}],
    "slurm": {
        "name": "hive",
        "partitions": [
            {"name": "batch", "is_default": True, "nodes": [{**NODES, "count": 1}, {**NODES, "count": 1, "idle": 1}]},
            {"name": "large", "nodes": [{"count": 8, "gres": [{"name": "gpu", "count": 4}, {"name": "nvme", "count": 1}]}]},
            {"name": "thin", "nodes": [{"count": 8}]},
        ],
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("partition", "cards"),
    [(None, "4 x a100"), ("batch", "4 x a100"), ("large,batch", "32 x gpu, 4 x a100"), ("thin", "-")],
)
def test_hosts_shows_the_cards_of_a_cluster_as_slurm_calls_them(partition, cards):
    """How much memory `a100` has, Slurm does not say; the cards that a plan expects are a guess."""
    host = SlurmHost(name="hive", address="login1", slurm=SlurmSettings(partition=partition))
    shown = hosts._cells(Probed(host, Facts.model_validate(FACTS)))
    assert shown[:3] == (cards, "-", "-")


@pytest.mark.parametrize(
    ("down", "words"), [(0, "1 of 2 nodes idle in"), (1, "1 of 2 nodes idle and 1 down in")]
)
def test_hosts_counts_the_nodes_that_are_down(down, words):
    nodes = [{**NODES, "count": 2, "idle": 1, "down": down}]
    slurm = {"name": "hive", "partitions": [{"name": "batch", "is_default": True, "nodes": nodes}]}
    host = SlurmHost(name="hive", address="login1", slurm=SlurmSettings())
    facts = Facts.model_validate({**FACTS, "slurm": slurm})
    assert words in SlurmProbing().row(host, lambda: facts, Lookup()).quota


def test_an_item_whose_job_waits_is_not_called_running(local_copy):
    """While nothing is known of its run, it has begun; then the run's own state is shown, in every list."""
    queue = make_queue("sweep", Rules(), [NewItem("i1", "{}", ("hive",), {})])
    item = queue.step(queue.items()[0], ItemState.RESERVED, run=RUN, host="hive")
    item = queue.step(item, ItemState.CONFIRMED)
    assert [row.state for row in rows_of([item])] == [state_of(item)] == ["reserved"]
    shutil.rmtree(local_copy.folder / "0001")
    assert [row.state for row in rows_of([item])] == [state_of(item)] == ["begun"]


@pytest.mark.parametrize(
    ("said", "look"),
    [
        (
            "unrecognized option '--nonsense=1'; Try \"sbatch --help\" for more information",
            "ssh login1 sbatch --help",
        ),
        ("Invalid --time specification", "ssh login1 sbatch --help"),
        ("Batch job submission failed: Invalid feature specification", "launch probe --host hive"),
    ],
)
def test_a_refusal_names_what_shows_what_is_right(local_copy, said, look, monkeypatch):
    """A probe shows partitions and nodes, and no flags."""

    def start(_run):
        raise AgentError("hive", NOT_SUBMITTED, f"hive: sbatch: {said}")

    taken_back = SimpleNamespace(take_back=lambda _run: True)
    desk = SimpleNamespace(preparation=taken_back, by_hand=lambda command: f"ssh login1 {command}")
    runtime = SlurmRuntime(desk, RuntimeRecord(kind="slurm"))
    monkeypatch.setattr(runtime, "start", start)
    with pytest.raises(RefusedError) as refused:
        launching._start(runtime, local_copy)
    assert str(refused.value).splitlines()[1].endswith(look)
