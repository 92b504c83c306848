"""What is read of a cluster, by the recorded words of a real one, and what an agent says of one that does not answer."""

import re
import time
from pathlib import Path

import pytest

from launcher.agent.host import slurm_facts
from launcher.agent.liveness.slurm import slurm_programs
from launcher.backends.slurm.slurm_probing import SlurmProbing
from launcher.values.facts import Facts
from launcher.values.reported.cluster import Cluster

RECORDINGS = Path(__file__).parent / "slurm_outputs"
LOGIN = Facts(
    host_id="h", boot_id="b", hostname="login", user="ada", platform="linux", machine="x86_64", cpus=8, root="/r", python="p",
)  # fmt: skip


def recorded(name):
    """What each program printed, by its name, and its exit status."""
    text = (RECORDINGS / f"probe-{name}.txt").read_text()
    found = re.findall(r"^\$ (\w+)[^\n]*\n(.*?)^\[(\d+)\]$", text, re.DOTALL | re.MULTILINE)
    return {program: (said, int(code)) for program, said, code in found}


def partitions(name):
    found = Cluster.model_validate({"partitions": slurm_facts.parse_nodes(recorded(name)["sinfo"][0])})
    return {one.name: one for one in found.partitions}


def test_a_cluster_says_its_name_its_version_and_whether_it_keeps_accounts():
    read = slurm_facts.parse_config(recorded("at-rest")["scontrol"][0])
    assert read == {"name": "testbed", "version": "22.05.8", "has_accounting": False, "can_requeue": True}
    assert slurm_facts.parse_config(recorded("with-accounts")["scontrol"][0])["has_accounting"]


def test_partitions_have_limits_and_nodes_that_are_alike_are_counted():
    found = partitions("at-rest")
    assert list(found) == ["batch", "spare", "short"]
    batch, short = found["batch"], found["short"]
    assert (batch.is_default, short.is_default, batch.state) == (True, False, "up")
    assert (batch.max_time_s, short.max_time_s, batch.max_nodes) == (7 * 86400, 600, None)
    (alike,) = batch.nodes
    assert (alike.count, alike.idle, alike.down, alike.cpus, alike.memory_mib) == (2, 2, 0, 4, 4000)
    assert [gres.title for gres in alike.gres] == ["gpu:a100:2"]
    assert alike.features == ("a100",)
    assert [gres.title for gres in batch.gpus] == ["gpu:a100:2"]


def test_nodes_at_work_are_not_idle_and_drained_ones_are_down():
    """`probe` calls them drained, as Slurm does."""
    found = partitions("at-work")
    (alike,) = found["batch"].nodes
    assert (alike.count, alike.idle, alike.down, alike.drained) == (2, 0, 1, 1)
    facts = LOGIN.model_copy(update={"slurm": Cluster(partitions=(found["batch"],))})
    rows = [text for _, text in SlurmProbing().rows(facts, None)]
    assert any(row.endswith("features a100: 0 idle, 1 drained") for row in rows)
    lost = "batch|up|infinite|1-infinite|2|down*|4|4000|(null)|(null)\nbatch|up|infinite|1-infinite|1|drain*|4|4000|(null)|(null)"
    (alike,) = slurm_facts.parse_nodes(lost)[0]["nodes"]
    assert (alike["down"], alike["drained"]) == (3, 1)
    assert (found["short"].state, found["batch"].state) == ("down", "up")


def test_nodes_of_different_sizes_are_not_counted_as_the_smallest():
    """Without `--exact`, sinfo prints the smallest number of CPUs of a group of nodes, as `4+`."""
    assert "--exact" in slurm_facts.NODES
    listed = "batch*|up|infinite|1-infinite|2|idle|4|4000|(null)|(null)\nbatch*|up|infinite|1-infinite|1|idle|64|4000|(null)|(null)"
    nodes = slurm_facts.parse_nodes(listed)[0]["nodes"]
    assert [(alike["count"], alike["cpus"]) for alike in nodes] == [(2, 4), (1, 64)]


def test_jobs_of_the_user_are_counted_by_whether_they_wait():
    assert slurm_facts.parse_queue(recorded("at-work")["squeue"][0]) == {"queued": 1, "running": 1}
    assert slurm_facts.parse_queue(recorded("at-rest")["squeue"][0]) == {"queued": 0, "running": 0}


def test_accounts_and_qos_are_those_of_the_user():
    read = slurm_facts.parse_accounts(recorded("with-accounts")["sacctmgr"][0])
    assert (read["accounts"], sorted(read["qos"])) == (["lab"], ["high", "normal"])


@pytest.mark.parametrize("name", ["at-rest", "no-associations"])
def test_a_user_without_accounts_may_name_any(name):
    """Where the cluster keeps none, and where it has none for this user: nothing is known, so nothing is refused."""
    said, code = recorded(name)["sacctmgr"]
    assert slurm_facts.parse_accounts(said if code == 0 else "") == {}


def test_a_controller_that_is_gone_is_an_error_of_each_program():
    assert all(
        code != 0 for said, code in map(recorded("no-controller").get, ("scontrol", "sinfo", "squeue"))
    )


@pytest.mark.parametrize(
    ("text", "gres"),
    [
        ("gpu:a100:2(S:0-1),nvme:1", ["gpu:a100:2", "nvme:1"]),
        ("gpu:4", ["gpu:4"]),
        ("gpu:a100:1(S:0,2),gpu:h100:3(S:1)", ["gpu:a100:1", "gpu:h100:3"]),
        ("gpu", ["gpu:1"]),
        ("gpu:a100", ["gpu:a100:1"]),
        ("shard:2K,gpu:a100:no_consume:1", ["shard:2048", "gpu:a100:1"]),
        ("(null)", []),
        ("", []),
    ],
)
def test_what_a_node_has_is_read_as_slurm_writes_it(text, gres):
    """The sockets behind it are no part of it."""
    nodes = Cluster.model_validate(
        {"partitions": [{"name": "p", "nodes": [{"count": 1, "gres": slurm_facts.parse_gres(text)}]}]}
    )
    assert [one.title for one in nodes.partitions[0].nodes[0].gres] == gres


@pytest.mark.parametrize(
    "line", ["", "slurm_load_partitions: Unable to contact slurm controller", "a|b|c", "|" * 9]
)
def test_a_line_of_another_form_is_left_out(line):
    assert [one["nodes"] for one in slurm_facts.parse_nodes(line)] in ([], [[]])


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Programs that a test writes, and none of Slurm's own."""
    for name in ("env", "sleep", "sh"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    monkeypatch.setenv("PATH", str(tmp_path))

    def put(name, script):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return put


def test_a_machine_without_slurms_programs_says_which_is_missing(programs, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm_programs, "_FOLDERS", ())
    assert "scontrol was not found on" in slurm_facts.read_cluster_facts(str(tmp_path), "ada")["error"]


def test_a_controller_that_is_silent_costs_no_more_than_its_deadline(programs, tmp_path, monkeypatch):
    """Each program is given up, and what was asked is named."""
    monkeypatch.setattr(slurm_facts, "ANSWER_S", 0.3)
    for name in ("scontrol", "sinfo", "squeue", "sacctmgr"):
        programs(name, "exec sleep 60")
    began = time.monotonic()
    read = slurm_facts.read_cluster_facts(str(tmp_path), "ada")
    assert time.monotonic() - began < 10
    assert "scontrol show config did not answer" in read["error"]
    assert (Cluster.model_validate(read).queued, Cluster.model_validate(read).accounts) == (None, None)


def test_what_a_program_says_before_it_fails_is_the_error(programs, tmp_path):
    programs("scontrol", "echo 'slurm_load_ctl_conf error: Unable to contact slurm controller' >&2; exit 1")
    programs("sinfo", "exit 0")
    error = slurm_facts.read_cluster_facts(str(tmp_path), "ada")["error"]
    assert error == "scontrol show config: slurm_load_ctl_conf error: Unable to contact slurm controller"


def test_a_root_that_another_machine_used_is_seen_by_others(tmp_path):
    """What this machine keeps there itself proves nothing."""
    (tmp_path / "hosts" / slurm_facts.process.host_id()).mkdir(parents=True)
    assert not slurm_facts.is_seen_elsewhere(str(tmp_path))
    (tmp_path / "hosts" / "0123456789abcdef").mkdir()
    assert slurm_facts.is_seen_elsewhere(str(tmp_path))
