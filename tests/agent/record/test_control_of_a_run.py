"""What decides over a run is not in the folders to which its job writes; what is there is data."""

import json
import os
from pathlib import Path

import pytest
from testbed.toy import recorded_run

from launcher.agent.cards import lease
from launcher.agent.host import evidence_import, leftovers, probe_host, slurm_facts
from launcher.agent.liveness import run_state
from launcher.agent.liveness.docker import docker_liveness
from launcher.agent.liveness.slurm import slurm_programs
from launcher.agent.record import secret
from launcher.agent.record.files import write_durably
from launcher.agent.system import process

RUN = "261122-train-k3f9w2"
ENGINE = {"name": "docker", "socket": "/run/docker.sock"}
PREPARED = {
    "kind": "prepare",
    "place_id": process.host_id(),
    "boot_id": process.boot_id(),
    "runtime": {"kind": "docker", "engine": ENGINE, "gpus": ["GPU-1"], "any_of": ["GPU-1"]},
}
PLAN = {
    "job": "train", "method": "full", "model": {"kind": "name", "value": "m"}, "profile": {"name": "t4"},
}  # fmt: skip


@pytest.fixture
def run(tmp_path):
    """A run in a container, which is over."""
    made = recorded_run(tmp_path / "root", RUN, "succeeded")
    made.write_prepared(made.folder(1), PREPARED)
    write_durably(made.plan, json.dumps(PLAN))
    return made


def test_a_record_that_the_job_wrote_decides_nothing(run):
    """Neither which program is started to reach the engine, nor which cards are leased."""
    runtime = {**PREPARED["runtime"], "engine": {"name": "docker", "program": "/evil"}, "gpus": ["GPU-2"]}
    Path(run.folder(1).attempt).write_text(json.dumps({**PREPARED, "runtime": runtime}))
    assert run_state.runtime_of(run)["engine"] == ENGINE
    assert docker_liveness._access(run) == ENGINE
    assert run.cards() == ["GPU-1"]


def test_a_run_of_before_has_its_record_in_its_first_folder(run):
    """And is read from there."""
    os.unlink(run.prepared_record)
    assert run.prepared()["runtime"]["engine"] == ENGINE


def test_an_agent_in_a_container_holds_its_cards_without_a_write(run):
    """It sees the leases of its own cards alone, read-only."""
    taken = lease.take(run, ["GPU-1"])
    taken.release()
    (record, _) = lease.files_of(run.root, ["GPU-1"])
    before = os.stat(record).st_mtime_ns, os.stat(lease.folder_of(run.root)).st_mtime_ns
    held = lease.claim(run)
    assert held.gpus == ["GPU-1"]
    assert not lease.take(recorded_run(Path(run.root), "261122-other-aaaaaa"), ["GPU-1"], wait_s=0.0).gpus
    held.release()
    assert (os.stat(record).st_mtime_ns, os.stat(lease.folder_of(run.root)).st_mtime_ns) == before
    os.unlink(record)
    write_durably(record, json.dumps({"run": "261122-other-aaaaaa"}))
    assert not lease.claim(run).gpus


def test_precision_evidence_of_a_container_speaks_for_its_own_plan(run):
    """It reaches its place through the run's record, once; a job says nothing of another model."""
    evidence_import.expect(run)
    key = {"torch": "2.13.0", "model": "a", "trainable": "b", "precision": "c"}
    said = {"key": key, "proof": {"steps": 3}, "failed": "fp16-unscale", "driver": "580.65.06", "time": 9e11}
    claims = {
        **said,
        "card": "h100",
        "model": {"kind": "name", "value": "another"},
        "job": "another",
        "run": "x",
    }
    write_durably(run.folder(1).precision, json.dumps(claims))
    evidence_import.take_in_all(run.root, process.host_id())
    (path,) = Path(run.evidence(process.host_id())).iterdir()
    record = json.loads(path.read_text())
    assert {name: record[name] for name in ("card", "model", "job", "run", "failed", "key")} == {
        "card": "t4", "model": PLAN["model"], "job": "train", "run": RUN, "failed": "fp16-unscale", "key": key,
    }  # fmt: skip
    assert record["time"] < 9e11
    path.unlink()
    evidence_import.take_in_all(run.root, process.host_id())  # the run is over: it was the last time
    assert not path.exists()


def test_precision_evidence_of_a_cluster_holds_through_each_login_node(run, tmp_path, monkeypatch):
    """Whatever the driver of its nodes is, which no login node knows; a cluster of another name, or a machine, has none of it."""
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)

    def recalled(host_id, cluster, slurm=True):
        monkeypatch.setenv("LAUNCH_HOST_ID", host_id)
        (tmp_path / "slurm.conf").write_text(f"ClusterName={cluster}\n")
        slurm_programs._cluster_name.cache_clear()
        found = probe_host.probe(run.root, None, [], model=PLAN["model"], slurm=slurm)["precision_evidence"]
        slurm_programs._cluster_name.cache_clear()
        return [record["failed"] for record in found]

    run.write_prepared(
        run.folder(1), {**PREPARED, "place_id": "slurm:hive", "runtime": {"kind": "slurm", "engine": None}}
    )
    monkeypatch.setenv("LAUNCH_HOST_ID", "1" * 16)
    evidence_import.expect(run)
    key = {"torch": "2.13.0", "model": "a", "trainable": "b", "precision": "c"}
    said = {"key": key, "proof": None, "failed": "fp16-unscale", "driver": "580.65.06", "time": 1e9}
    write_durably(run.folder(1).precision, json.dumps(said))
    assert recalled("2" * 16, "hive") == ["fp16-unscale"]
    assert recalled("1" * 16, "Hive") == ["fp16-unscale"]
    assert recalled("1" * 16, "bee") == recalled("1" * 16, "hive", slurm=False) == []
    assert not slurm_facts.is_seen_elsewhere(
        run.root
    )  # what is kept of a cluster was kept by this login node


def test_a_run_cannot_push_out_what_others_have_shown(run):
    """What is kept of all runs is bounded, so what is taken from one is, too, however often it changes."""
    evidence_import.expect(run)
    Path(run.folder(1).state).write_text('{"state": "running"}')
    for number in range(3 * evidence_import.MAX_PER_RUN):
        write_durably(run.folder(1).precision, json.dumps({"key": {"model": str(number)}}))
        evidence_import.take_in_all(run.root, process.host_id())
    assert len(list(Path(run.evidence(process.host_id())).iterdir())) == evidence_import.MAX_PER_RUN


@pytest.mark.parametrize("text", ["[]", "{", '{"key": 3}', '{"key": {}, "failed": [1]}', "[" * 100_000])
def test_odd_evidence_is_none(run, text):
    """A link or a pipe is none either."""
    evidence_import.expect(run)
    Path(run.folder(1).precision).write_text(text)
    evidence_import.take_in_all(run.root, process.host_id())
    os.unlink(run.folder(1).precision)
    os.mkfifo(run.folder(1).precision)
    evidence_import.expect(run)
    evidence_import.take_in_all(run.root, process.host_id())
    assert not os.path.isdir(run.evidence(process.host_id()))


def test_secrets_of_a_run_of_before_are_read_and_erased(run):
    """They lay beside the plan."""
    Path(run.older_secrets).write_text('{"A": "value"}')
    assert secret.read(run) == {"A": "value"}
    secret.erase(run)
    assert not os.path.exists(run.older_secrets)


def test_secrets_that_an_agent_did_not_live_to_erase_are_erased_when_its_run_is_stopped(run):
    """A job that writes that its run has ended, and kills its agent, has them left on the host otherwise."""
    Path(run.secrets).write_text('{"A": "value"}')
    leftovers.remains(run)
    assert not os.path.exists(run.secrets)
