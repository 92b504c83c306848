"""What Slurm is asked for by a plan: the cards that may come, the flags of sbatch, and the nodes that share the batch."""

import pytest
from planning.test_what_fits import MODELS
from testbed.profiles import profile, profiles

from launcher.backends.registry import backend_of
from launcher.backends.slurm.apptainer import host_paths
from launcher.backends.slurm.slurm_host import SlurmHost
from launcher.backends.slurm.slurm_job import (
    is_of_type,
    parse_gres,
    possible_profiles,
    resubmission,
    settings_of,
    submission,
    with_expected_cards,
    with_others,
)
from launcher.backends.slurm.slurm_planning import resources_of
from launcher.errors import RefusedError, UnequalSharesError, UsageError
from launcher.planning.assembly import changed, job_of, plan
from launcher.values.facts import Facts
from launcher.values.host import LOCAL
from launcher.values.job import Job
from launcher.values.plan import Plan
from launcher.values.reported.cluster import Cluster
from launcher.values.slurm_settings import SlurmSettings

FACTS = {
    "host_id": "0" * 16, "boot_id": "b", "hostname": "login1", "user": "u", "platform": "linux", "machine": "x86_64",
    "cpus": 2, "free_gb": 100.0, "root": "/home/u/.launch", "python": "3.11.2",
}  # fmt: skip


def nodes(gres, count=2, **more):
    listed = [{"name": "gpu", "type": kind, "count": number} for kind, number in gres]
    return {"count": count, "gres": listed, **more}


def cluster(*partitions):
    return Cluster.model_validate({"name": "hive", "version": "22.05.8", "partitions": partitions})


BATCH = {"name": "batch", "is_default": True, "nodes": [nodes([("a100", 4)])]}
MIXED = {"name": "mixed", "nodes": [nodes([("nvidia_a100_80gb_pcie", 2)]), nodes([("h100", 4)])]}
BARE = {"name": "bare", "nodes": [nodes([(None, 4)])]}
CPUS = {"name": "cpus", "nodes": [nodes([])]}
HIVE = cluster(BATCH, MIXED, BARE, CPUS)


def settings(**keys):
    return SlurmSettings(**keys)


def possible(named=(), gpus=None, known=HIVE, **keys):
    return possible_profiles(
        "hive", settings(**keys), [profile(name) for name in named], gpus, known, profiles()
    )


def titles(found):
    return [one.title for one in found]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("a100", ["a100_40gb", "a100_80gb"]),
        ("nvidia_a100_80gb_pcie", ["a100_80gb"]),
        ("NVIDIA-A100-SXM4-40GB", ["a100_40gb"]),
        ("a100_1g.5gb", []),  # a part of one, whose memory no profile has
        ("a1000", []),
        ("h100", ["h100", "h100_94gb"]),
        ("gh200", ["gh200_96gb"]),
        ("b200", ["b200_180gb"]),
        ("tesla_t4", ["t4"]),
        ("l40", ["l40_48gb"]),
        ("l4", ["l4_24gb"]),
        ("a10g", ["a10g_24gb"]),
        ("nvidia_a10", ["a10_24gb"]),
        ("nvidia_geforce_rtx_4090", ["rtx_4090_24gb"]),
        ("rtx4080super", []),
        ("rtx_4080_super", []),
        ("rtx3090ti", []),
        ("quadro_rtx_6000", ["rtx_6000_24gb"]),
        ("rtx6000ada", ["rtx_6000_ada_48gb"]),
        ("nvidia_rtx_6000_ada_generation", ["rtx_6000_ada_48gb"]),
        ("rtx_pro_6000_blackwell", ["rtx_pro_6000_blackwell_96gb"]),
        ("v100", ["v100_16gb", "v100_32gb"]),
        ("tesla_v100-sxm2-32gb", ["v100_32gb"]),
        ("l40s", ["l40s"]),
        ("titanrtx", ["titan_rtx"]),
        ("titan-rtx", ["titan_rtx"]),
        ("tesla_p100", ["p100"]),
        ("fast", []),
    ],
)
def test_a_clusters_name_for_cards_means_the_profiles_that_it_contains(kind, names):
    """Its memory too, where it says that."""
    singles = [one for one in profiles().values() if one.kind == "cuda" and one.count == 1]
    assert [one.name for one in singles if is_of_type(one, kind)] == names


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (None, []),
        ("gpu", ["gpu:1"]),
        ("gpu:2", ["gpu:2"]),
        ("gpu:a100", ["gpu:a100:1"]),
        ("gpu:a100:2,nvme:1", ["gpu:a100:2", "nvme:1"]),
        ("gpu:3090:1,tmp:2K", ["gpu:3090:1", "tmp:2048"]),
    ],
)
def test_what_a_job_asks_for_is_read_as_slurm_reads_it(written, read):
    assert [one.title for one in parse_gres(written)] == read


def test_without_a_name_the_partition_says_which_cards_come():
    """The one with the least memory is planned, since all fit what fits there."""
    assert titles(possible()) == ["A100 40 GB", "A100 80 GB"]
    assert titles(possible(partition="mixed")) == ["A100 80 GB", "H100 80 GB", "H100 NVL 94 GB"]
    h100 = ["2 x H100 80 GB", "2 x H100 NVL 94 GB"]
    assert titles(possible(partition="mixed", gres="gpu:h100:2")) == h100
    assert titles(possible(partition="cpus")) == ["CPU"]
    assert titles(possible(partition="no-such")) == ["CPU"]  # which the gate refuses


@pytest.mark.parametrize(
    ("known", "partition", "said"),
    [
        (HIVE, "bare", "hive: partition bare has cards without a type (gpu:4)"),
        (
            cluster({"name": "b", "is_default": True, "nodes": [nodes([("fast", 4)])]}),
            None,
            "hive: partition b has gpu:fast, which no profile is for",
        ),
        (None, None, "hive: which cards its nodes have is not known"),
    ],
)
def test_cards_that_no_profile_names_must_be_named(known, partition, said):
    with pytest.raises(RefusedError) as caught:
        possible(known=known, partition=partition)
    assert said in str(caught.value)
    assert "launch --host hive --profile NAME" in str(caught.value)


def test_cards_that_no_node_has_are_not_said_to_be_there():
    """What its nodes have is, in the words of the gate. Another case is Slurm's same type."""
    with pytest.raises(RefusedError) as caught:
        possible(gres="gpu:k80:1")
    assert str(caught.value) == (
        "hive: partition batch has no node with gpu:k80:1\n  its nodes have   gpu:a100:4 (2 nodes)"
    )
    there = cluster({"name": "b", "is_default": True, "nodes": [nodes([("fast", 4)])]})
    with pytest.raises(RefusedError, match="has gpu:FAST, which no profile is for"):
        possible(known=there, gres="gpu:FAST:1")
    with pytest.raises(RefusedError, match="hive: no profile is for gpu:k80"):
        possible(gres="gpu:k80:1", partition="no-such")


def test_a_users_own_profile_is_found_by_the_clusters_name_for_its_cards():
    own = profile("l40s").model_copy(update={"name": "fast", "title": "our card"})
    there = cluster({"name": "b", "is_default": True, "nodes": [nodes([("fast", 4)])]})
    found = possible_profiles("hive", settings(), [], None, there, {**profiles(), "fast": own})
    assert titles(found) == ["our card"]


def test_a_family_is_narrowed_by_what_the_partition_has():
    """A name that it does not have stays, for the gate to refuse."""
    assert titles(possible(["a100_40gb", "a100_80gb"])) == ["A100 40 GB", "A100 80 GB"]
    assert titles(possible(["a100_40gb", "a100_80gb"], partition="mixed")) == ["A100 80 GB"]
    assert titles(possible(["l40s"])) == ["L40S 48 GB"]


def test_the_number_of_cards_is_that_of_each_node():
    assert titles(possible(["l40s"], "2")) == ["2 x L40S 48 GB"]
    assert titles(possible(["l40s"], gres="gpu:4")) == ["4 x L40S 48 GB"]
    assert titles(possible(["l40s"], "4", gres="gpu:4,nvme:1")) == ["4 x L40S 48 GB"]
    assert titles(possible(["l40s"], gres="nvme:1")) == ["L40S 48 GB"]
    assert titles(possible(["t4x2"])) == ["2 x T4 16 GB"]
    assert titles(possible(["cpu"], "2")) == ["CPU"]
    with pytest.raises(UsageError, match="asks Slurm for 4 on each node"):
        possible(["l40s"], "2", gres="gpu:4")


@pytest.mark.parametrize(
    ("named", "keys", "gres"),
    [
        ([], {}, "gpu:a100:1"),
        (["a100_80gb"], {"partition": "mixed"}, "gpu:nvidia_a100_80gb_pcie:1"),
        ([], {"partition": "mixed"}, "gpu:1"),  # any of them, and the plan for what comes
        (["l40s"], {"partition": "bare"}, "gpu:1"),
        (["a100_80gb"], {"gres": "gpu:fast:2"}, "gpu:fast:2"),
        (["a100_80gb"], {"gres": "nvme:1"}, "nvme:1,gpu:a100:1"),
        (["cpu"], {"gres": "nvme:1"}, "nvme:1"),
        (["cpu"], {}, None),
    ],
)
def test_slurm_is_asked_for_the_plans_cards_by_the_partitions_name(named, keys, gres):
    asked = submission(settings(**keys), possible(named, **keys), HIVE, is_rehearsed=False)
    assert [flag for flag in asked.flags if flag.startswith("--gres")] == ([f"--gres={gres}"] if gres else [])


def test_a_rehearsal_asks_for_no_card():
    asked = submission(settings(), possible(["l40s"]), HIVE, is_rehearsed=True)
    assert (asked.flags, asked.cards) == (("--nodes=1",), ())


def job_plan(host=None, gpus=None, named=(), **keys):
    host = host or SlurmHost(name="hive", address="hive", slurm=settings(partition="batch"))
    job = Job(name="train", command=("python", "train.py"), **keys)
    asked = settings_of(host, job)
    cards = possible_profiles("hive", asked, [profile(name) for name in named], gpus, HIVE, profiles())
    wanted = submission(asked, cards, HIVE, is_rehearsed=False, paths=host_paths(job))
    first, *others = (plan(one, host, job, runtime="slurm", resources=resources_of(wanted)) for one in cards)
    return with_others(first, others)


def test_a_plan_says_what_sbatch_is_given_and_which_cards_may_come():
    """On another card the values of its own plan take the place of those of the first."""
    made = job_plan()
    assert made.slurm.flags == ("--partition=batch", "--nodes=1", "--gres=gpu:a100:1")
    first, other = made.slurm.cards
    assert (first.title, first.count, first.plan) == ("A100 40 GB", 1, None)
    assert (other.title, other.plan.profile.name, other.plan.allocation.how) == (
        "A100 80 GB",
        "a100_80gb",
        "scheduled",
    )
    assert "NVIDIA A100-SXM4-80GB" in other.names
    assert (made.allocation.how, made.allocation.cards, made.allocation.kind) == ("scheduled", 1, "a100_40gb")
    assert Plan.model_validate_json(made.to_json()) == made


def test_a_job_has_keys_of_its_own_for_slurm():
    made = job_plan(slurm={"time": "2:00:00", "partition": "mixed", "modules": ["cuda/12.4"], "build": "job"})
    assert made.slurm.flags == ("--partition=mixed", "--time=2:00:00", "--nodes=1", "--gres=gpu:1")
    assert (made.slurm.modules, made.slurm.build) == (("cuda/12.4",), "job")
    assert settings_of(LOCAL, Job(name="a", command=("a",))) is None


def test_nodes_have_equal_shares_of_the_batch():
    """Four cards on two nodes share it as four on one would."""
    made = job_plan(gpus="2", slurm={"nodes": 2}, batch={"global": 64})
    assert [node.ranks for node in made.nodes] == [2, 2]
    assert (made.split.ranks, made.split.global_batch, made.slurm.nodes) == (4, 64, 2)
    assert made.allocation.cards == 4
    assert all(cards.count == 2 for cards in made.slurm.cards)
    assert all(sum(node.ranks for node in cards.plan.nodes) == 4 for cards in made.slurm.cards[1:])
    with pytest.raises(UnequalSharesError, match="does not divide among 6 cards"):
        job_plan(gpus="2", slurm={"nodes": 3}, batch={"global": 64})


@pytest.mark.parametrize(
    ("named", "slurm", "job", "line"),
    [
        (
            "a100_80gb",
            {"image": "/shared/torch.sif"},
            {},
            "apptainer exec --nv --bind {root} --bind {socket} --pwd {code} /shared/torch.sif",
        ),
        (
            "cpu",
            {"image": "docker://ghcr.io/org/name:1.2", "nodes": 2},
            {},
            "apptainer exec --bind {root} --bind {socket} --pwd {code} docker://ghcr.io/org/name:1.2",
        ),
        (
            "a100_40gb",
            {"image": "/shared/torch.sif"},
            {"model": "host:/models/m", "data": {"train": "host:/data/a", "eval": "host:~/b"}},
            "apptainer exec --nv --bind {root} --bind {socket} --bind /models/m --bind /data/a --pwd {code} /shared/torch.sif",
        ),
    ],
)
def test_an_image_is_started_by_this_line(named, slurm, job, line):
    """What the agent puts for the words in braces, tests/agent/slurm/test_container_words.py says."""
    made = job_plan(named=[named], slurm=slurm, **job)
    assert " ".join(made.slurm.container) == line
    assert Plan.model_validate_json(made.to_json()) == made


def test_a_card_that_the_asked_precision_does_not_fit_is_not_planned_for():
    """It may come, and would then run out of memory; without a precision it is planned as the leanest allows."""
    job = Job(name="x", command=("python", "x.py"), method="lora", model="org/m")
    cards = [profile("a100_80gb"), profile("a100_40gb")]
    wanted = submission(settings(), possible(), HIVE, is_rehearsed=False)
    host = SlurmHost(name="hive", address="hive", slurm=settings())
    for asked, count in (("fp32", 0), ("bf16", 1)):
        first, *others = (
            plan(one, host, job, asked, runtime="slurm", resources=resources_of(wanted), model=MODELS["14B"])
            for one in cards
        )
        assert len(with_others(first, others).slurm.cards) - len(first.slurm.cards) == count


def test_a_plan_without_an_image_has_no_key_for_it():
    """So its digest is what it was before there were any."""
    assert "container" not in job_plan().to_json()


def test_a_run_that_goes_on_stays_in_its_image():
    parent = job_plan(slurm={"image": "/shared/torch.sif"})
    child = resubmission(parent.slurm, SlurmSettings(time="60"))
    assert child.container == parent.slurm.container != ()


def test_a_plan_for_another_place_has_no_key_of_slurms():
    """So its digest is what it was before there were any."""
    made = plan(profile("l40s"), LOCAL, Job(name="train", command=("python", "train.py")))
    assert "slurm" not in made.model_dump()
    assert '"slurm"' not in made.to_json()


def test_a_run_that_goes_on_asks_for_what_its_parent_did_but_for_what_is_changed():
    parent = job_plan(slurm={"time": "60", "modules": ["cuda/12.4"]}, gpus="2")
    job = job_of(parent)
    assert job.slurm is None
    host = SlurmHost(name="hive", address="hive", slurm=settings())
    change = backend_of(host).planning.changed
    assert change(changed(parent, job, (), "hive"), job) == parent
    longer = Job.model_validate({**dict(job), "slurm": {"time": "7-0", "extra": ["--exclusive"]}})
    after = change(changed(parent, longer, ("slurm.time", "slurm.extra"), "hive"), longer)
    flags = ("--partition=batch", "--time=7-0", "--nodes=1", "--gres=gpu:a100:2", "--exclusive")
    assert (after.slurm.flags, after.slurm.modules, after.slurm.cards) == (
        flags,
        ("cuda/12.4",),
        parent.slurm.cards,
    )
    assert resubmission(None, SlurmSettings(time="60")) is None


def test_what_a_login_node_has_itself_is_no_card_of_a_job():
    """Neither its own cards count, nor what is wrong with them."""
    own = {"index": 0, "uuid": "GPU-0", "name": "NVIDIA T400"}
    facts = Facts.model_validate({**FACTS, "gpus": [own], "gpu_error": "lost"})
    there = with_expected_cards(facts, profile("l40s").of_cards(2))
    assert [(gpu.name, gpu.memory_mib) for gpu in there.gpus] == [("NVIDIA L40S", 45372)] * 2
    assert there.gpu_error is None
    assert with_expected_cards(facts, profile("cpu")).gpus == with_expected_cards(facts, None).gpus == ()
