"""Plans: pure, canonical, one golden directory a case. `pytest --rewrite-cases` writes them anew."""

import json
import tomllib
from pathlib import Path

import pytest
from testbed.profiles import profile, profiles

from launcher.backends.kaggle.kaggle_host import KAGGLE
from launcher.backends.kaggle.kaggle_machines import choose_machine
from launcher.backends.kaggle.kaggle_planning import SESSION
from launcher.backends.kaggle.kaggle_session import session
from launcher.config.resolve import image_sources, wheels
from launcher.errors import BadFileError, RefusedError, UnknownNameError
from launcher.planning.assembly import changed, job_of, plan
from launcher.planning.gate import check
from launcher.planning.placement import (
    best_card,
    card_choice_reason,
    choose_gpus,
    match_profile,
    requested_processes,
    runtime,
)
from launcher.planning.script.source import source
from launcher.planning.verification_plan import verification
from launcher.values.facts import Facts
from launcher.values.host import Host
from launcher.values.job import BatchSize, Job
from launcher.values.parsing import build
from launcher.values.profile import Profile

CASES = sorted(path for path in (Path(__file__).parents[1] / "cases").iterdir() if path.is_dir())

FACTS = {
    "host_id": "0" * 16, "boot_id": "b", "hostname": "h", "user": "u", "platform": "linux", "machine": "x86_64",
    "cpus": 2, "free_gb": 100.0, "root": "/r", "python": "3.11.2",
}  # fmt: skip


def facts(**more):
    return Facts.model_validate({**FACTS, **more})


def gpu(name, memory_mib=24576, capability="7.5", index=0):
    uuid = f"GPU-{index}"
    return {"index": index, "uuid": uuid, "name": name, "memory_mib": memory_mib, "capability": capability}


def kaggle_plan(card, job):
    """The plan of a job for an account of Kaggle's, with those for the cards that may come instead."""
    choice = choose_machine(KAGGLE.name, KAGGLE.kaggle, [card], profiles(), allow_substitute=True)
    first, *others = (
        plan(card, KAGGLE, job, runtime="kaggle", resources=SESSION) for card in choice.profiles
    )
    given = session(choice, others, job.requirements, wheels())
    return first.model_copy(update={"session": given})


def case_plan(case):
    wanted = tomllib.loads((case / "case.toml").read_text())
    job = build(Job, wanted["job"], file=str(case / "case.toml"))
    if wanted.get("host") == KAGGLE.name:
        return kaggle_plan(profile(wanted["profile"]), job)
    return plan(
        profile(wanted["profile"]),
        Host(name="there", address="there"),
        job,
        wanted.get("precision", "auto"),
        wanted.get("runtime", "native"),
        image_sources(),
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_plan_is_its_golden_file(case, request):
    """The same inputs give the same bytes, today and next year."""
    written = case_plan(case).to_json() + "\n"
    golden = case / "plan.json"
    if request.config.getoption("--rewrite-cases"):
        golden.write_text(written)
    assert written == golden.read_text()
    assert written == case_plan(case).to_json() + "\n"


def test_a_plan_survives_its_own_json():
    """What was written is read back as the same value."""
    one = case_plan(CASES[0])
    assert type(one).model_validate_json(one.to_json()) == one


def test_a_plan_of_an_older_client_is_read():
    """It calls the host's environment `env`."""
    one = case_plan(CASES[0]).model_copy(update={"host_environment": "~/venv"})
    older = one.to_json().replace('"host_environment":', '"env":')
    assert '"env":"~/venv"' in older
    assert type(one).model_validate_json(older) == one


def test_the_probe_decides_the_profile():
    """A card is known by the name its driver reports; none at all means cpu."""
    known = list(profiles().values())
    assert match_profile(facts(gpus=[gpu("NVIDIA TITAN RTX")]), known).name == "titan_rtx"
    assert match_profile(facts(gpus=[gpu("NVIDIA A100 80GB PCIe", 81920, "8.0")]), known).name == "a100_80gb"
    assert match_profile(facts(), known).name == "cpu"
    assert match_profile(facts(platform="darwin", machine="arm64"), known).name == "mps"


MIXED = [
    gpu("Quadro K1", 99999, None, 0),
    gpu("NVIDIA TITAN RTX", 24576, "7.5", 1),
    gpu("NVIDIA L40S", 45372, "8.9", 2),
    gpu("NVIDIA L40S", 45372, "8.9", 3),
]


@pytest.mark.parametrize(
    ("name", "memory_mib", "capability", "profile_name"),
    [
        ("Tesla T4", 15360, "7.5", "t4"),
        ("NVIDIA H100 80GB HBM3", 81559, "9.0", "h100"),
        ("NVIDIA H100 PCIe", 81559, "9.0", "h100"),
        ("NVIDIA H200", 143771, "9.0", "h200"),
        ("NVIDIA A100-SXM4-40GB", 40339, "8.0", "a100_40gb"),
        ("NVIDIA A100 80GB PCIe", 81920, "8.0", "a100_80gb"),
        ("NVIDIA L40S", 45372, "8.9", "l40s"),
        ("Tesla P100-PCIE-16GB", 16280, "6.0", "p100"),
    ],
)
def test_a_card_is_known_by_what_its_driver_reports(name, memory_mib, capability, profile_name):
    """As seen on real ones: a little less memory than the nominal."""
    one = match_profile(facts(gpus=[gpu(name, memory_mib, capability)]), profiles().values())
    assert (one.name, one.capability) == (profile_name, capability)


def test_of_several_kinds_of_card_the_one_with_the_most_memory_is_taken():
    """Cards of which too little is known are passed over; of equal ones the first index; the reason is told."""
    told = facts(gpus=MIXED)
    one = match_profile(told, profiles().values())
    assert one.name == "l40s"
    assert choose_gpus(one, told, 1) == ("GPU-2",)
    assert (
        card_choice_reason(one, told)
        == "L40S 48 GB (GPU 2) is chosen: it has the most memory of the cards with a profile"
    )
    assert best_card(told, [profile("titan_rtx")])[1].uuid == "GPU-1"
    assert card_choice_reason(one, facts(gpus=MIXED[2:])) == ""


def holder(pid=50213, **more):
    return {
        "pid": pid,
        "user": "eve",
        "uid": 1007,
        "command": "python eval.py",
        "memory_mib": 1200,
        "state": "S",
        **more,
    }


def l40s(index, mode="default", *holders, **more):
    one = gpu("NVIDIA L40S", 45372, "8.9", index)
    return {**one, "compute_mode": mode, "holders": list(holders), **more}


EXCLUSIVE, PROHIBITED = "exclusive-process", "prohibited"
ZOMBIE = holder(state="Z")
OURS = holder(ownership="ours-live", run="1121-sft-ab12")
GIVEN = holder(ownership="handed-over", run="1121-sft-ab12", receiver="slurmstepd (pid 42)")


@pytest.mark.parametrize(
    ("cards", "order"),
    [
        ([l40s(0), l40s(1)], "01"),
        ([l40s(1), l40s(0)], "01"),
        ([l40s(0, "default", holder()), l40s(1)], "10"),
        ([l40s(0, "default", ZOMBIE), l40s(1)], "01"),
        ([l40s(0, "default", OURS), l40s(1)], "10"),
        ([l40s(0, PROHIBITED), l40s(1, "default", holder())], "10"),
        ([l40s(0, EXCLUSIVE, holder()), l40s(1, "default", holder())], "10"),
        ([l40s(0, EXCLUSIVE), l40s(1, "default", holder())], "01"),
        ([l40s(0, EXCLUSIVE, holder()), l40s(1, EXCLUSIVE, OURS)], "10"),
    ],
)
def test_a_card_that_admits_us_goes_first_then_a_free_one_then_the_lower_index(cards, order):
    """What is dead holds nothing; what is said of the choice is the card that is taken."""
    told, one = facts(gpus=[*cards, gpu("NVIDIA TITAN RTX", index=2)]), profile("l40s")
    assert choose_gpus(one, told, 2) == tuple(f"GPU-{index}" for index in order)
    assert f"(GPU {order[0]}) is chosen" in card_choice_reason(one, told)


@pytest.mark.parametrize(
    ("cards", "more", "found"),
    [
        ([l40s(0, EXCLUSIVE, holder()), l40s(1, EXCLUSIVE, holder())], {}, ["gpu-busy-exclusive"]),
        ([l40s(0, EXCLUSIVE, holder()), l40s(1, PROHIBITED)], {}, ["gpu-busy-exclusive"]),
        ([l40s(0, PROHIBITED)], {}, ["gpu-prohibited"]),
        ([l40s(0, EXCLUSIVE, holder()), l40s(1, EXCLUSIVE)], {}, []),
        ([l40s(0, EXCLUSIVE, ZOMBIE)], {}, []),
        ([l40s(0, EXCLUSIVE, OURS)], {}, []),
        ([l40s(0, EXCLUSIVE, GIVEN)], {}, ["gpu-busy-exclusive"]),
        ([l40s(0, EXCLUSIVE, holder())], {"nvidia_mps": True}, ["gpu-shared"]),
        ([l40s(0, "default", holder())], {}, ["gpu-shared"]),
        ([l40s(0, None, ecc_errors=2)], {}, ["gpu-errors"]),
        ([l40s(0), l40s(1, ecc_errors=2)], {}, []),
        ([l40s(0, xids=[13, 31])], {}, []),
        ([l40s(0, xids=[13, 79])], {}, ["gpu-errors"]),
        ([l40s(1)], {"gpu_error": "nvidia-smi: GPU is lost"}, ["gpu-lost"]),
        ([l40s(1)], {"holders_error": "nvidia-smi did not answer in 10 s"}, ["holders-unknown"]),
    ],
)
def test_the_gate_refuses_cards_that_admit_nothing_of_ours_and_notes_what_else_is_wrong(cards, more, found):
    """A refusal only where no card that the profile names is left."""
    one = case_plan(next(case for case in CASES if case.name == "words_on_l40s"))
    findings = check(one, facts(gpus=cards, **more))
    assert [finding.code for finding in findings] == found
    is_refusal = set(found) & {"gpu-busy-exclusive", "gpu-prohibited"}
    assert all((finding.level == "refuse") is bool(is_refusal) for finding in findings)


def test_several_slices_of_cards_are_refused():
    """CUDA shows a process one slice (MIG) only; one is fine, and so are two whole cards."""
    one = case_plan(next(case for case in CASES if case.name == "words_on_l40s"))
    two = one.model_copy(update={"profile": one.profile.of_cards(2)})
    slices = facts(gpus=[{**l40s(index), "uuid": f"MIG-{index}"} for index in (0, 1)])
    assert "gpu-slices" not in [finding.code for finding in check(one, slices)]
    assert "gpu-slices" not in [finding.code for finding in check(two, facts(gpus=[l40s(0), l40s(1)]))]
    (found,) = (finding for finding in check(two, slices) if finding.code == "gpu-slices")
    assert (found.level, "--gpus MIG-0 " in found.mend) == ("refuse", True)


def test_a_card_that_a_handed_over_process_holds_is_not_ours_to_free():
    """The refusal names the run, who has the process now, and how its owner ends it."""
    one = case_plan(next(case for case in CASES if case.name == "words_on_l40s"))
    (finding,) = check(one, facts(gpus=[l40s(0, EXCLUSIVE, GIVEN)]))
    words = "handed over to slurmstepd (pid 42) by run 1121-sft-ab12: end it there, or   kill 50213"
    assert f"holds GPU 0: {words}" in finding.message


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("torchrun --nproc-per-node 4 train.py", 4),
        ("/opt/venv/bin/torchrun --standalone --nproc_per_node=2 train.py --nproc-per-node 8", 2),
        ("accelerate launch --num_processes 3 --mixed_precision bf16 train.py", 3),
        ("accelerate launch --num-processes=3 train.py", 3),
        ("python -m torch.distributed.run --nproc-per-node=2 -m pkg.train", 2),
        ("python3 -m accelerate.commands.launch --num_processes 2 train.py", 2),
        ("torchrun --nproc-per-node gpu train.py", None),
        ("torchrun train.py --num_processes 4", None),
        ("accelerate launch train.py", None),
        ("python train.py --num_processes 4", None),
        ("./start.sh --nproc-per-node 4", None),
    ],
)
def test_how_many_processes_a_command_is_told_to_start(command, count):
    """What stands behind the script is the script's."""
    assert requested_processes(tuple(command.split())) == count


@pytest.mark.parametrize(
    ("command", "mode", "more", "is_refused"),
    [
        ("torchrun --nproc-per-node 2 train.py", EXCLUSIVE, {}, True),
        ("torchrun --nproc-per-node 1 train.py", EXCLUSIVE, {}, False),
        ("torchrun --nproc-per-node 2 train.py", "default", {}, False),
        ("torchrun --nproc-per-node 2 train.py", EXCLUSIVE, {"nvidia_mps": True}, False),
    ],
)
def test_more_processes_than_cards_are_refused_where_a_card_takes_one(command, mode, more, is_refused):
    """With the count that would do."""
    one = case_plan(next(case for case in CASES if case.name == "words_on_l40s"))
    plan = one.model_copy(update={"command": tuple(command.split())})
    found = {finding.code: finding for finding in check(plan, facts(gpus=[l40s(0, mode)], **more))}
    assert ("too-many-contexts" in found) == is_refused
    assert not is_refused or "--gpus 2" in found["too-many-contexts"].mend


@pytest.mark.parametrize(("cards", "advice"), [(1, False), (4, True)])
def test_more_processes_than_planned_cards_are_noted(cards, advice):
    """With as many cards, if the host has them."""
    one = case_plan(next(case for case in CASES if case.name == "words_on_l40s"))
    plan = one.model_copy(update={"command": ("torchrun", "--nproc-per-node", "4", "train.py")})
    found = {finding.code: finding for finding in check(plan, facts(gpus=[*map(l40s, range(cards))]))}
    note = found["more-processes-than-cards"]
    assert (note.level, "4 processes on 1 card" in note.message) == ("note", True)
    assert ("--gpus 4" in note.mend) == advice


@pytest.mark.parametrize(
    ("name", "count", "title"),
    [("t4", 3, "3 x T4 16 GB"), ("t4x2", 4, "4 x T4 16 GB"), ("t4x2", 1, "T4 16 GB")],
)
def test_a_profile_of_so_many_cards(name, count, title):
    """Its title says how many; each has its share of the batch."""
    one = profile(name).of_cards(count)
    assert (one.title, one.count) == (title, count)


@pytest.mark.parametrize(
    ("name", "installed", "level", "said"),
    [
        ("p100", "2.13.0+cu130", "refuse", "torch 2.13.0+cu130: cu130 has no code for capability 6.0"),
        ("p100", "2.13.0", "note", "cu130 has no code for capability 6.0, if it is PyPI's build"),
        ("p100", "2.13.0+cu126", None, ""),
        ("p100", "2.13.0+cpu", "refuse", "has no CUDA"),
        ("l40s", "2.13.0+cu130", None, ""),
        ("l40s", None, None, ""),
    ],
)
def test_an_installed_torch_that_cannot_run_on_the_card_is_refused_before_an_upload(
    name, installed, level, said
):
    """With the command that installs one that can."""
    card = profile(name)
    one = plan(
        card, Host(name="there", address="there"), Job(name="x", command=("a",), requirements=("torch",))
    )
    cards = [gpu(card.probe_names[0], card.memory_gb * 1024, card.capability)]
    interpreter = {"path": "/v/bin/python", "version": "3.11.2", "packages": {"torch": installed}}
    findings = check(one, facts(gpus=cards, interpreter=interpreter), wheels=wheels())
    found = [one for one in findings if one.code == "torch-unfit"]
    assert [one.level for one in found] == ([level] if level else [])
    assert all(said in one.message for one in found)
    assert all("/v/bin/python -m pip install torch==2.1" in one.mend for one in found)


@pytest.mark.parametrize(
    ("more", "who", "ask"),
    [
        ({}, "eve", "ask eve to end it"),
        ({"user": None}, "uid 1007", "ask uid 1007 to end it"),
        ({"user": None, "uid": None}, "another user", "ask its owner to end it"),
        ({"user": "u"}, "u", "yours, of no run; to end it   kill 50213"),
        ({"user": "u", "state": "T"}, "u", "yours, of no run; to end it   kill -KILL 50213"),
        ({"user": "u", "state": "D"}, "u", "it cannot be killed until its pending I/O ends"),
    ],
)
def test_a_refusal_names_the_holder_and_whom_to_ask(more, who, ask):
    """And the words to type; nothing in it changes by the second."""
    one = case_plan(next(case for case in CASES if case.name == "words_on_l40s"))
    (found,) = check(one, facts(gpus=[l40s(0, EXCLUSIVE, holder(**more))]))
    assert found.message.splitlines()[1] == f"  pid 50213 ({who}, python eval.py) holds GPU 0: {ask}"
    assert found.mend.startswith("launch probe --host there ")


TWO_T4 = [gpu("Tesla T4", 15360, "7.5", index) for index in (0, 1)]


def two_cards(**job):
    one = Job(name="x", command=("python", "train.py"), **job)
    return plan(profile("t4x2"), Host(name="there", address="there"), one)


def test_two_cards_share_the_global_batch():
    """Each has half of it, in micro-batches of what one card holds; a batch that cannot be halved is refused."""
    split_of = two_cards(batch=BatchSize(global_size=64)).split
    assert (split_of.ranks, split_of.micro_batch, split_of.accumulation) == (2, 4, 8)
    assert split_of.title == "2 cards x micro-batch 4 x 8 = 64"
    assert two_cards(batch=BatchSize(global_size=2, micro=2)).split.micro_batch == 1
    with pytest.raises(RefusedError, match="7 does not divide among 2 cards"):
        two_cards(batch=BatchSize(global_size=7))


def test_two_cards_are_chosen_where_both_are_there():
    """Nothing speaks against them, host or no host; a program that is started once must start its ranks itself."""
    one, told = two_cards(), facts(gpus=[MIXED[1], *TWO_T4])
    assert choose_gpus(one.profile, told, one.split.ranks) == ("GPU-0", "GPU-1")
    assert [finding.code for finding in check(one, told)] == []
    assert [finding.code for finding in check(one, None)] == []
    (note,) = check(one.model_copy(update={"command": ("sh", "train.sh")}), told)
    assert (note.level, note.code) == ("note", "one-process")


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("torchrun --standalone --nproc-per-node 2 train.py", "--standalone"),
        ("python -m torch.distributed.run --rdzv_backend=c10d train.py", "--rdzv_backend=c10d"),
        ("torchrun --nproc-per-node 2 train.py --standalone", None),
        ("python train.py --standalone", None),
    ],
)
def test_a_torchrun_that_unpickles_what_others_write_is_noted(command, option):
    """With the option to leave out."""
    plan = two_cards().model_copy(update={"command": tuple(command.split())})
    found = [finding.message for finding in check(plan, None) if finding.code == "unpickling-torchrun"]
    assert found == (
        [f"torchrun {option}: other users of the host can run code in this training"] if option else []
    )


@pytest.mark.parametrize(("keep", "codes"), [(0, ["no-checkpoint"]), (1, []), (None, [])])
def test_a_job_that_may_have_no_checkpoint_for_a_while_is_told_what_it_risks(keep, codes):
    """The old one goes before the new one is written."""
    found = check(two_cards().model_copy(update={"keep_checkpoints": keep}), None)
    assert [finding.code for finding in found if "loses the training" in finding.message] == codes


def test_one_card_is_not_two():
    """The gate names what is there."""
    found = {finding.code: finding for finding in check(two_cards(), facts(gpus=TWO_T4[:1]))}
    assert found["card-mismatch"].message == "there has 1 x Tesla T4, not 2 x T4 16 GB"
    assert "--gpus 1 " in found["card-mismatch"].mend
    assert "no GPU that launcher sees; this plan is for 2 x" in check(two_cards(), facts())[0].message


def test_several_cards_are_taken_only_where_they_are_asked_for():
    """A host with two of a kind gets the profile of one, whatever the order in which profiles are known."""
    known = list(profiles().values())
    for order in (known, known[::-1]):
        assert match_profile(facts(gpus=TWO_T4), order).name == "t4"


def test_a_count_is_for_cards():
    """There are no two CPUs in a profile, and no zero cards."""
    for wrong in (
        {"kind": "cpu", "count": 2},
        {"kind": "cuda", "capability": "7.5", "memory_gb": 16, "count": 0},
    ):
        with pytest.raises(BadFileError, match="count"):
            build(Profile, {"name": "x", "title": "X", **wrong}, file="x.toml")


@pytest.mark.parametrize(
    ("written", "kind", "value"),
    [
        ("hub:org/name", "name", "org/name"),
        ("org/name", "name", "org/name"),
        ("hub:./odd", "name", "./odd"),
        ("host:/data/x", "host", "/data/x"),
        ("./x", "local", "./x"),
    ],
)
def test_where_a_model_comes_from_is_told_by_how_it_is_written(written, kind, value):
    """A path here, a path there, or a word for the script: of a hub, if it says so."""
    found = source(written)
    assert (found.kind, found.value) == (kind, value)


def test_the_gate_names_every_kind_of_card_that_is_there():
    """A plan for a card that a mixed host lacks."""
    one = case_plan(next(case for case in CASES if case.name == "sft_on_h100"))
    (found,) = check(one, facts(gpus=MIXED))
    assert "has Quadro K1, NVIDIA TITAN RTX, NVIDIA L40S, not a H100" in found.message


def test_a_card_that_cannot_be_read_is_said_though_a_cpu_would_do():
    """Nobody trains on a CPU by mistake: a note for a CPU's plan, a refusal for a card's."""
    told = facts(gpu_error="nvidia-smi did not answer in 10 s")
    assert match_profile(told, profiles().values()).name == "cpu"
    for name, level in (("sft_on_cpu", "note"), ("sft_on_l40s", "refuse")):
        (found,) = check(case_plan(next(case for case in CASES if case.name == name)), told)
        assert (found.code, found.level) == ("gpu-unreadable", level)
        assert "nvidia-smi did not answer in 10 s" in found.message


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ({"file_system": {"error": "Read-only file system"}}, "root-unusable"),
        ({"file_system": {"quota_free_gb": 0.2}}, "disk-full"),
        ({"file_system": {"free_inodes": 3}}, "disk-full"),
        ({"free_gb": None}, None),
        ({"file_system": {"kind": "nfs4", "is_shared": True, "is_noexec": True}}, None),
    ],
)
def test_the_gate_refuses_a_root_that_cannot_hold_a_run(more, code):
    """Bytes, inodes, quota or the right to write; what is not told is not held against it."""
    one = case_plan(next(case for case in CASES if case.name == "sft_on_cpu"))
    assert [finding.code for finding in check(one, facts(**more))] == ([code] if code else [])


def test_an_interpreter_that_is_not_there_is_refused_with_those_that_are():
    """The way out stands in the message."""
    one = case_plan(next(case for case in CASES if case.name == "sft_on_cpu"))
    told = {"path": "/no/python", "error": "No such file or directory"}
    (found,) = check(
        one, facts(interpreter=told, pythons=[{"path": "/usr/bin/python3", "version": "3.11.2"}])
    )
    assert found.message.endswith("found on the host: /usr/bin/python3 3.11.2")


def test_packages_that_a_probe_was_not_asked_for_are_noted():
    """A gate that does not know says so."""
    job = Job(name="x", command=("a",), requirements=("torch>=2.6", "peft"))
    one = plan(profile("cpu"), Host(name="there", address="there"), job)
    told = {"path": "/p", "version": "3.11.2", "packages": {"peft": "0.21"}}
    (found,) = check(one, facts(interpreter=told))
    assert (found.level, found.code) == ("note", "packages-unknown")
    assert "did not look for torch;" in found.message


@pytest.mark.parametrize(
    ("card", "rehearsed", "version", "has"),
    [
        ("l40s", False, None, "lacks bitsandbytes"),
        ("l40s", False, "0.45.5", "has bitsandbytes 0.45.5, not 0.46.1 or later"),
        ("l40s", False, "0.46.1", None),
        ("l40s", True, "0.49.2", "has bitsandbytes 0.49.2, not 0.50 or later"),
        ("cpu", False, "0.49.2", "has bitsandbytes 0.49.2, not 0.50 or later"),
        ("cpu", False, "0.50.2", None),
    ],
)
def test_a_host_s_own_python_needs_a_bitsandbytes_for_a_base_in_4_bits(card, rehearsed, version, has):
    """It is refused once, with the command that installs it; a LoRA needs none."""
    told = facts(
        gpus=[gpu("NVIDIA L40S", 46068, "8.9")] if card == "l40s" else [],
        interpreter={
            "path": "/p",
            "version": "3.11.2",
            "packages": {"bitsandbytes": version, "torch": "2.13.0"},
        },
    )
    place, on = Host(name="there", address="there"), profile("cpu") if rehearsed else None
    for method in ("lora", "qlora"):
        job = Job(name="x", command=("a",), requirements=("torch", "bitsandbytes"), method=method)
        findings = {one.code: one for one in check(plan(profile(card), place, job, rehearsed_on=on), told)}
        assert ("no-quantizer" in findings) == (method == "qlora" and has is not None)
    assert "missing-packages" not in findings
    if has is not None:
        found = findings["no-quantizer"]
        assert found.level == "refuse"
        assert found.message == f"there: /p {has}: it quantizes the base of method = qlora"
        assert found.mend.startswith("/p -m pip install 'bitsandbytes>=0.")


def test_a_card_that_no_profile_names_is_said():
    """Where none can be derived. The message holds the driver's own name for it, and what the driver does not tell."""
    for lacks, one in {
        "capability": gpu("Quadro K1", capability=None),
        "memory": gpu("Quadro K1", None),
    }.items():
        with pytest.raises(UnknownNameError, match=f"'Quadro K1', .* does not report its {lacks}\n"):
            match_profile(facts(gpus=[one]), profiles().values())


def test_the_gate_refuses_a_card_that_is_not_there_and_names_what_is():
    """A plan for another card is refused before anything is sent."""
    one = case_plan(next(case for case in CASES if case.name == "sft_on_titan_rtx"))
    found = check(one, facts(gpus=[gpu("NVIDIA L40S", 45372, "8.9")]))
    assert [finding.code for finding in found] == ["card-mismatch"]
    assert "has NVIDIA L40S, not a TITAN RTX" in found[0].message
    assert check(one, facts(gpus=[gpu("NVIDIA TITAN RTX")])) == ()


def test_a_host_without_a_card_is_offered_a_rehearsal():
    """By the verb that was typed; a torch for CUDA would not help it."""
    card = profile("titan_rtx")
    job = Job(name="x", command=("python", "a.py"), requirements=("torch",))
    one = plan(card, Host(name="there", address="there"), job)
    interpreter = {"path": "/v/bin/python", "version": "3.11.2", "packages": {"torch": "2.13.0+cpu"}}
    (found,) = check(one, facts(interpreter=interpreter), wheels=wheels())
    assert found.message == "there has no GPU that launcher sees; this plan is for a TITAN RTX 24 GB"
    assert found.mend == "launch … --rehearse --profile titan_rtx     tries the plan on a CPU"
    (verified,) = check(verification(one, job), facts(interpreter=interpreter), wheels=wheels())
    assert verified.mend.startswith("launch verify … --rehearse --profile titan_rtx ")
    (other,) = check(verification(one, job), facts(gpus=[gpu("Tesla T4", 15360)]))
    assert other.mend.startswith("launch verify --host there ")


def test_the_gate_names_missing_packages_and_a_full_disk():
    """Both are refusals, found by the probe."""
    one = case_plan(next(case for case in CASES if case.name == "sft_on_cpu"))
    one = one.model_copy(update={"requirements": ("torch", "peft")})
    lacking = {"path": "/usr/bin/python3", "version": "3.11.2", "packages": {"torch": None, "peft": "0.21"}}
    found = check(one, facts(interpreter=lacking, free_gb=0.1))
    assert [finding.code for finding in found] == ["missing-packages", "disk-full"]
    assert "/usr/bin/python3 lacks torch" in found[0].message


def test_findings_hold_no_volatile_figure():
    """A dry run's bytes do not change with the free space of the hour."""
    one = case_plan(next(case for case in CASES if case.name == "sft_on_cpu"))
    assert json.dumps([f.model_dump() for f in check(one, facts(free_gb=0.1))]) == json.dumps(
        [f.model_dump() for f in check(one, facts(free_gb=0.2))]
    )


def engine_at(name="docker", version="20.10.24", error=None, socket="/var/run/docker.sock"):
    return {"name": name, "program": f"/bin/{name}", "socket": socket, "version": version, "error": error}


CLOSED = engine_at(version=None, error="Permission denied")
PODMAN = engine_at("podman", "4.3.1", socket="/run/podman/podman.sock")
ANYTHING = Job(name="x", command=("a",), requirements=("torch",))
BARE = Job(name="x", command=("a",))


@pytest.mark.parametrize(
    ("engines", "says", "expected"),
    [
        ([engine_at()], {}, "docker"),
        ([engine_at()], {"runtime": "native"}, "native"),
        ([engine_at()], {"address": None}, "native"),
        ([engine_at()], {"environment": "~/venv"}, "native"),
        ([engine_at()], {"environment": "~/venv", "runtime": "docker"}, "docker"),
        ([engine_at()], {"engine": "/run/other.sock"}, "native"),
        ([engine_at()], {"engine": "/var/run/docker.sock"}, "docker"),
        ([PODMAN], {}, "native"),
        ([PODMAN], {"engine": "podman"}, "docker"),
        ([PODMAN], {"engine": "/run/podman/podman.sock"}, "docker"),
        ([engine_at("podman", "3.4.4")], {"engine": "podman"}, "native"),
        ([engine_at(version="18.9.1")], {}, "native"),
        ([engine_at(version=None)], {}, "native"),
        ([engine_at(socket=None, version=None, error="it has no socket")], {"sudo": True}, "native"),
        ([CLOSED], {}, "native"),
        ([CLOSED], {"sudo": True}, "docker"),
        ([], {}, "native"),
        ([], {"runtime": "docker"}, "docker"),
        ([], {"runtime": "docker", "address": None}, "docker"),
    ],
)
def test_a_container_is_taken_where_an_engine_answers_elsewhere(engines, says, expected):
    """What the host's table says goes first; this machine is used natively."""
    host = Host(**{"name": "there", "address": "there", **says})
    assert runtime(profile("cpu"), host, ANYTHING, facts(engines=engines)) == expected


def test_a_job_without_requirements_needs_no_image_of_its_own_accord():
    """An image would hold nothing for it; whoever wants one all the same says so."""
    there = Host(name="there", address="there")
    known = facts(engines=[engine_at()])
    assert runtime(profile("cpu"), there, BARE, known) == "native"
    asked = there.model_copy(update={"runtime": "docker"})
    assert runtime(profile("cpu"), asked, BARE, known) == "docker"


def test_an_image_of_ones_own_asks_for_a_container_and_apples_gpu_for_none():
    """A job that names an image is not silently run without it; no container sees an Apple GPU."""
    own = Job(name="x", command=("a",), image="mine")
    assert runtime(profile("cpu"), Host(name="local"), own, facts()) == "docker"
    assert runtime(profile("mps"), Host(name="m", address="m"), own, facts(engines=[engine_at()])) == "native"


def contained(**more):
    host = Host(name="there", address="there", **more)
    return plan(profile("cpu"), host, Job(name="x", command=("a",), image="mine"), runtime="docker"), host


@pytest.mark.parametrize(
    ("engines", "says", "message", "mend"),
    [
        ([], {}, "found on the host: none", "--runtime native"),
        ([CLOSED], {}, "docker at /var/run/docker.sock: Permission denied", "usermod -aG docker u "),
        ([CLOSED], {}, "there: no container engine that can be used", "sudo = true for there in launch.toml"),
        ([engine_at(version="18.9.1")], {}, "version 18.9.1 is too old: 19.03 is the first", "--runtime native"),
        ([engine_at(socket=None, error="it has no socket")], {}, "docker at /bin/docker: it has no socket", "native"),
        ([engine_at(version=None)], {}, "does not report its version", "native"),
        ([PODMAN], {"engine": "docker"}, "no engine docker that can be used\n  podman at /run/podman/podman.sock: usable, but", "native"),
        ([engine_at("podman", "3.4.4")], {}, "version 3.4.4 is too old: 4.3 is the oldest that was tried", "native"),
        ([engine_at("podman", None, "it has no socket", None)], {}, "podman at /bin/podman: it has no socket", "--now podman.socket"),
        ([engine_at("containerd")], {}, "launch does not know this engine", "native"),
    ],
)  # fmt: skip
def test_the_gate_says_which_engines_are_there_and_why_none_can_be_used(engines, says, message, mend):
    """Without one a container cannot begin; the way out stands in the message."""
    one, host = contained(**says)
    (found,) = check(one, facts(engines=engines), host)
    assert (found.level, found.code) == ("refuse", "no-engine")
    assert message in found.message
    assert mend in found.mend


def test_a_container_brings_its_own_packages():
    """What the host's interpreter lacks is no matter there; sudo opens a closed engine."""
    lacking = {"path": "/usr/bin/python3", "version": "3.11.2", "packages": {"torch": None}}
    one, host = contained(sudo=True)
    assert check(one, facts(engines=[CLOSED], interpreter=lacking), host) == ()


def test_a_small_disk_is_noted_where_an_image_is_built():
    """The engine's own folder is not known, so it is no refusal."""
    case = next(case for case in CASES if case.name == "sft_in_a_container_on_p100")
    told = {"engines": [engine_at()], "gpus": [gpu("Tesla P100-PCIE-16GB", 16280, "6.0")]}
    (found,) = check(case_plan(case), facts(free_gb=4.0, **told))
    assert (found.level, found.code) == ("note", "image-room")
    assert check(case_plan(case), facts(free_gb=40.0, **told)) == ()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_plan_that_goes_on_is_its_parents_but_for_what_was_changed(case):
    """For every card; where nothing was changed, not a byte is."""
    parent = case_plan(case)
    assert changed(parent, job_of(parent), (), parent.host).to_json() == parent.to_json()
    longer = job_of(parent).model_copy(update={"steps": 600, "seed": 9})
    expected = {**parent.model_dump(), "steps": 600, "host": "here"}
    assert changed(parent, longer, ("steps",), "here").model_dump() == expected


def test_another_micro_batch_is_another_split_of_the_same_batch_as_far_as_the_card_allows():
    """By the planner's own reckoning, as at a launch; longer samples leave less room, and never more."""
    job = Job(name="x", command=("a",), batch=BatchSize(global_size=64), settings={"max_length": 512})
    parent = plan(profile("titan_rtx"), Host(name="there", address="there"), job)
    splits = []
    for micro in (1, 2, 3, 64):
        batch = BatchSize(global_size=5, micro=micro)
        asked = job_of(parent).model_copy(update={"batch": batch})
        splits.append(changed(parent, asked, ("batch.micro",), "there").split)
    assert [one.micro_batch for one in splits] == [1, 2, 2, parent.split.micro_batch]
    assert {one.global_batch for one in splits} == {64}
    longer = job_of(parent).model_copy(update={"settings": {"max_length": 4096}})
    again = changed(parent, longer, ("settings.max_length",), "there")
    assert again.split.micro_batch <= parent.split.micro_batch
    assert again.settings == {"max_length": 4096}
