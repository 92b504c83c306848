"""The gate of a cluster: what sbatch would accept and never start, and what it would refuse, said with what there is."""

import pytest
from testbed.profiles import profile, profiles

from launcher.backends.registry import backend_of
from launcher.backends.slurm.slurm_gate import duration_text
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.backends.slurm.slurm_job import possible_profiles, settings_of, submission, with_expected_cards
from launcher.backends.slurm.slurm_planning import resources_of
from launcher.planning.assembly import plan
from launcher.values.facts import Facts
from launcher.values.job import Job
from launcher.values.slurm_settings import SlurmSettings

A100 = {"name": "gpu", "type": "a100", "count": 2}
CLUSTER = {
    "name": "hive",
    "version": "22.05.8",
    "partitions": [
        {
            "name": "batch",
            "is_default": True,
            "max_time_s": 7 * 86400,
            "nodes": [
                {
                    "count": 2,
                    "idle": 2,
                    "cpus": 4,
                    "memory_mib": 4000,
                    "gres": [A100],
                    "features": ["a100", "rack1"],
                }
            ],
        },
        {"name": "short", "max_time_s": 600, "max_nodes": 1, "nodes": [{"count": 2, "gres": [A100]}]},
        {"name": "closed", "state": "down", "nodes": [{"count": 2, "down": 2, "gres": [A100]}]},
        {"name": "cpus", "nodes": [{"count": 8}]},
        {
            "name": "mixed",
            "nodes": [
                {"count": 1, "cpus": 64, "gres": [A100]},
                {"count": 4, "cpus": 8},
                {"count": 1, "cpus": 96},
            ],
        },
    ],
    "accounts": ["lab", "course"],
    "qos": ["normal", "high"],
}
FACTS = {
    "host_id": "0" * 16, "boot_id": "b", "hostname": "login1", "user": "u", "platform": "linux", "machine": "x86_64",
    "cpus": 2, "free_gb": 100.0, "root": "/home/u/.launch", "python": "3.11.2", "slurm": CLUSTER,
    "file_system": {"kind": "nfs4", "is_shared": True}, "ends_with_logout": True,
}  # fmt: skip


def found(named="a100_80gb", facts=None, cluster=None, gpus=None, needs=(), host_keys=None, **keys):
    """The findings of a job that asks Slurm for this, by their codes."""
    host = SlurmHost(name="hive", address="hive", slurm=SlurmSettings(**keys), **(host_keys or {}))
    job = Job(name="train", command=("python", "train.py"), batch={"global": 24}, requirements=needs)
    values = {**FACTS, **(facts or {}), "slurm": {**CLUSTER, **(cluster or {})}}
    there = Facts.model_validate(values)
    asked = settings_of(host, job)
    cards = possible_profiles("hive", asked, [profile(named)] if named else [], gpus, there.slurm, profiles())
    wanted = submission(asked, cards, there.slurm, is_rehearsed=False)
    made = plan(cards[0], host, job, runtime="slurm", resources=resources_of(wanted))
    findings = backend_of(host).planning.check(made, with_expected_cards(there, cards[0]), host)
    return {one.code: one for one in findings}


def test_a_plan_that_can_start_passes():
    """Nor does it matter what logind does on the login node: the job is no child of a session."""
    assert found() == {}
    assert (
        found(
            partition="batch",
            time="7-0",
            nodes=2,
            gres="gpu:a100:2",
            constraint="a100&rack1",
            account="lab",
            qos="high",
        )
        == {}
    )


@pytest.mark.parametrize(
    ("keys", "code", "said", "mend"),
    [
        ({"partition": "bach"}, "no-partition", "no partition 'bach': did you mean 'batch'?", "batch (default), short, closed, cpus, mixed"),
        ({"partition": "batch,nope"}, "no-partition", "no partition 'nope'", "there are"),
        ({"time": "8-0"}, "time-over-limit", '"8-0" is 8 days, and partition batch allows 7 days', "slurm.time=10080"),
        ({"partition": "short", "time": "11"}, "time-over-limit", "short allows 10 min", "slurm.time=10 "),
        ({"nodes": 3}, "too-many-nodes", "nodes = 3, and partition batch has 2", "slurm.nodes=2"),
        ({"partition": "short", "nodes": 2}, "too-many-nodes", "short allows a job 1", "slurm.nodes=1"),
        ({"gres": "gpu:a100:3"}, "no-such-gres", "batch has no node with gpu:a100:3", "gpu:a100:2 (2 nodes)"),
        ({"gres": "gpu:h100:1"}, "no-such-gres", "batch has no node with gpu:h100:1", "gpu:a100:2 (2 nodes)"),
        ({"gres": "a100:2"}, "no-such-gres", "gres = a100:2 names a type of cards", "gpu:TYPE:COUNT   --set slurm.gres=gpu:a100:2"),
        ({"gres": "nvme:2"}, "no-such-gres", "batch has no node with nvme:2", "gpu:a100:2 (2 nodes)"),
        ({"partition": "cpus"}, "no-such-gres", "cpus has no node with gpu:1", "nothing of the kind (8 nodes)"),
        ({"constraint": "h100"}, "no-such-feature", "has the feature 'h100'", "a100, rack1"),
        ({"constraint": "a100&rack2"}, "no-such-feature", "'rack2': did you mean 'rack1'?", "a100, rack1"),
        ({"account": "labb"}, "no-such-account", "is not one of yours: did you mean 'lab'?", "lab, course"),
        ({"qos": "hi"}, "no-such-qos", 'qos = "hi" is not one of yours', "normal, high"),
    ],
)  # fmt: skip
def test_what_would_never_start_is_refused_with_the_partitions_own_figures(keys, code, said, mend):
    against = found(**keys)
    assert against[code].level == "refuse"
    assert said in against[code].message
    assert mend in against[code].mend


@pytest.mark.parametrize(
    "keys",
    [
        {"partition": "short,batch", "time": "60"},  # the second may take it
        {"partition": "short,batch", "nodes": 2},
        {"constraint": "a100|h100"},
        {"constraint": "[rack1*2]"},
        {"gres": "gpu:2"},
        {"gres": "gpu:A100:2"},
    ],
)
def test_what_one_of_several_can_give_passes(keys):
    assert found(**keys) == {}


def test_accounts_are_not_checked_where_none_are_kept():
    assert found(account="any", qos="any", cluster={"accounts": None, "qos": None}) == {}


def test_other_cards_than_the_plans_are_refused():
    """Slurm would give them, and the job would end as wrong-card."""
    against = found("l40s")["card-mismatch"]
    assert (against.level, "partition batch gives gpu:a100, and the plan is for L40S" in against.message) == (
        "refuse",
        True,
    )
    assert "--profile auto" in against.mend
    assert found("a100_80gb", gres="gpu:a100:2") == {}


def test_a_type_that_the_user_names_is_taken_at_its_word():
    """It may be a part of a card, for which the user has a profile."""
    note = found("l40s", gres="gpu:a100:1")["card-unknown"]
    assert note.level == "note"
    assert "whether its cards (gpu:a100) are L40S 48 GB" in note.message


def test_what_does_not_reach_into_an_image_is_refused():
    """Packages that would be installed on the host, and a Python of the host's. What is in an image nobody knows."""
    image, lacking = "/shared/torch.sif", {"interpreter": {"path": "/usr/bin/python3", "version": "3.11.2"}}
    assert [(code, one.level) for code, one in found(image=image).items()] == [("image-unknown", "note")]
    assert "never tried with cards there (--nv)" in found(image=image)["image-unknown"].message
    assert "--nv" not in found("cpu", image=image)["image-unknown"].message
    against = found(image=image, needs=("torch>=2.4", "numpy"), facts=lacking)
    assert against.keys() == {"image-lacks-packages", "image-unknown"}
    assert (
        "nothing is installed: the job requires torch>=2.4, numpy" in against["image-lacks-packages"].message
    )
    assert against["image-lacks-packages"].mend.endswith("--set 'requirements=[]'")
    assert found(image=image, host_keys={"environment": "~/venv"})["image-and-environment"].level == "refuse"


@pytest.mark.parametrize("kind", [None, "fast"])
def test_cards_whose_type_says_nothing_are_looked_at_in_the_job(kind):
    nodes = [{"count": 2, "gres": [{"name": "gpu", "type": kind, "count": 2}]}]
    note = found("l40s", cluster={"partitions": [{"name": "batch", "is_default": True, "nodes": nodes}]})
    assert [(code, one.level) for code, one in note.items()] == [("card-unknown", "note")]
    assert "wrong-card" in note["card-unknown"].mend


@pytest.mark.parametrize(
    ("keys", "said", "mend"),
    [
        ({"extra": ("--cpus-per-task=64",)}, "no node of partition batch with gpu:a100:1 has more than 4 CPUs", '["--cpus-per-task=4"]'),
        ({"extra": ("--exclusive", "--mem=64G")}, "has more than 3.91 GiB", '["--exclusive", "--mem=4000M"]'),
        ({"extra": ("--mem=4001",)}, "--mem=4001: no node", "--mem=4000M"),
        ({"extra": ("--cpus-per-task=65",), "partition": "mixed"}, "more than 64 CPUs", "--cpus-per-task=64"),
        ({"extra": ("--cpus-per-task=9",), "partition": "mixed", "nodes": 3, "named": "cpu"}, "no 3 nodes of partition mixed have more than 8 CPUs", "=8"),
    ],
)  # fmt: skip
def test_flags_that_no_node_can_serve_are_refused(keys, said, mend):
    """A node counts only if it has the job's cards too. The other flags of `extra` stay in the command."""
    against = found(**keys)["nodes-too-small"]
    assert (against.level, said in against.message) == ("refuse", True), against.message
    assert mend in against.mend


@pytest.mark.parametrize(
    "keys",
    [
        {"extra": ("--cpus-per-task=4", "--mem=4000", "--mail-type=END")},
        {"extra": ("--mem=0",)},  # all of a node's
        {"extra": ("--mem=3G",)},
        {"extra": ("--cpus-per-task=64",), "partition": "batch,mixed"},
        {"extra": ("--cpus-per-task=99", "--mem=9T"), "partition": "short"},  # the cluster does not say
    ],
)
def test_flags_that_a_node_can_serve_pass(keys):
    assert found(**keys) == {}


@pytest.mark.parametrize("key", ["environment", "python"])
def test_a_python_that_compute_nodes_cannot_see_is_refused(key):
    """Also under a root that all nodes see. A program's name is found on each node."""
    against = found(host_keys={key: "/tmp/venv/bin/python"})["python-not-shared"]
    assert (against.level, f'{key} = "/tmp/venv/bin/python"' in against.message) == ("refuse", True)
    assert f'{key} = "~/…"  for hive' in against.mend
    for path in ("python3.11", "~/tmp/venv", "/tmpfs/venv"):
        assert found(host_keys={key: path}) == {}


def test_a_partition_that_starts_nothing_now_is_noted():
    """It may be opened again, and the job waits."""
    notes = found(partition="closed")
    assert {code: one.level for code, one in notes.items()} == {
        "partition-down": "note",
        "nodes-down": "note",
    }
    assert "closed is down" in notes["partition-down"].message
    assert (
        notes["nodes-down"].message
        == "hive: 2 of 2 nodes of partition closed are down: the job waits until 1 is up"
    )


def test_drained_nodes_are_called_drained():
    nodes = [{"count": 3, "down": 2, "drained": 1, "gres": [A100]}]
    partitions = [{"name": "batch", "is_default": True, "nodes": nodes}]
    assert found(cluster={"partitions": partitions}) == {}
    note = found(cluster={"partitions": partitions}, nodes=2)["nodes-down"]
    assert (
        "2 of 3 nodes of partition batch are down (1 drained): the job waits until 2 are up" in note.message
    )


def test_a_cluster_without_a_default_partition_must_be_told_one():
    bare = [{**CLUSTER["partitions"][0], "is_default": False}]
    against = found(cluster={"partitions": bare})["no-partition"]
    assert (against.level, "slurm.partition=" in against.mend, "batch" in against.mend) == (
        "refuse",
        True,
        True,
    )


@pytest.mark.parametrize("root", ["/home/LAB\\u/.launch", "/data/a\\b"])
def test_a_root_that_sbatch_would_take_for_another_is_refused(root):
    """A home may have a backslash where users are a domain's; that other machines use the root does not help."""
    for cluster in ({}, {"root_was_seen": True}):
        findings = found(facts={"root": root, "file_system": {"kind": "nfs4"}}, cluster=cluster)
        assert {code: finding.level for code, finding in findings.items()} == {
            "root-with-backslash": "refuse"
        }
        assert root in findings["root-with-backslash"].message
        assert 'root = "/' in findings["root-with-backslash"].mend


@pytest.mark.parametrize(
    ("root", "kind", "code", "level"),
    [
        ("/tmp/me", "ext4", "root-not-shared", "refuse"),
        ("/home/u/.launch", "tmpfs", "root-not-shared", "refuse"),
        ("/data/u", "xfs", "root-maybe-not-shared", "note"),
        ("/data/u", None, None, None),
        ("/data/u", "fuse.bindfs", None, None),
    ],
)
def test_a_root_that_compute_nodes_cannot_see_is_refused(root, kind, code, level):
    """A disk of the login node may be exported by it; what other machines have used is seen by others."""
    facts = {"root": root, "file_system": {"kind": kind}}
    assert [(one.code, one.level) for one in found(facts=facts).values()] == ([(code, level)] if code else [])
    assert found(facts=facts, cluster={"root_was_seen": True}) == {}


@pytest.mark.parametrize(("root", "is_advised"), [("~/.launch", False), ("/data/u", True)])
def test_a_root_in_the_home_is_not_advised_to_be_in_the_home(root, is_advised):
    facts = {"file_system": {"kind": "xfs"}}
    note = found(facts=facts, host_keys={"root": root})["root-maybe-not-shared"]
    assert ("such as your home" in note.mend) == is_advised


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(60, "1 min"), (600, "10 min"), (5400, "1.5 h"), (86400, "24 h"), (7 * 86400, "7 days")],
)
def test_a_limit_is_said_in_the_unit_that_suits_it(seconds, text):
    assert duration_text(seconds) == text
