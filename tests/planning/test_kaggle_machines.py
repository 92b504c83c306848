"""What Kaggle gives for a name: its table, what is refused with the next command, and what a plan expects there."""

import pytest
from testbed.profiles import profiles

from launcher.backends.kaggle.kaggle_host import KAGGLE, KaggleSettings
from launcher.backends.kaggle.kaggle_machines import (
    MACHINES,
    RETIRED,
    TPUS,
    choose_machine,
    expected_facts,
    fits,
    shape_for,
)
from launcher.backends.kaggle.kaggle_planning import SESSION
from launcher.backends.registry import backend_of
from launcher.config.resolve import wheels
from launcher.errors import LaunchError, RefusedError, UnknownNameError
from launcher.planning.assembly import plan
from launcher.planning.placement import choose_gpus, runtime
from launcher.values.job import BatchSize, Job

KNOWN = profiles()
JOB = Job(name="sft", command=("python", "train.py"), batch=BatchSize(global_size=64))
SHAPES = {machine.shape for machine in MACHINES}


def choice(*names, accelerator=None, **more):
    named = [KNOWN[name] for name in names]
    return choose_machine("kaggle", KaggleSettings(accelerator=accelerator), named, KNOWN, **more)


def refusal(*names, **more):
    with pytest.raises(LaunchError) as caught:
        choice(*names, **more)
    return caught.value


def plan_of(chosen, job=JOB, asked="auto", host=KAGGLE):
    profile = chosen.profiles[0]
    facts = expected_facts("kaggle-alice", chosen.machine, profile)
    return plan(
        profile,
        host,
        job,
        asked,
        runtime(profile, host, job, facts),
        platform=facts.for_precision,
        resources=SESSION,
    ), facts


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.shape)
def test_every_profile_of_the_table_is_one_for_all_of_the_machines_cards(machine):
    """A profile for one of two cards would leave the other to a script that takes all it sees."""
    settings = KaggleSettings(accelerator=machine.shape)
    chosen = choose_machine("kaggle", settings, [], KNOWN).profiles
    assert [one.name for one in chosen] == [*machine.profiles]
    assert all(fits(one, machine) for one in chosen)


def test_what_a_retired_name_gives_is_in_the_table():
    assert {one.instead for one in RETIRED} <= {*SHAPES, *TPUS}
    assert not {one.shape for one in RETIRED} & SHAPES


def test_without_a_word_it_is_two_t4():
    chosen = choice()
    assert (chosen.machine, [one.name for one in chosen.profiles], chosen.notes) == (
        "NvidiaTeslaT4",
        ["t4x2"],
        (),
    )


@pytest.mark.parametrize(
    ("name", "shape"),
    [("t4x2", "NvidiaTeslaT4"), ("h100", "NvidiaH100"), ("cpu", "None"), ("a100_80gb", "NvidiaTeslaA100")],
)
def test_a_profile_chooses_the_accelerator(name, shape):
    chosen = choice(name)
    assert (chosen.machine, [one.name for one in chosen.profiles]) == (shape, [name])
    assert shape_for(KNOWN[name]) == shape


def test_a_machine_of_unknown_memory_may_bring_either_card():
    """The smaller one is planned; the other's plan travels along."""
    assert [one.name for one in choice(accelerator="NvidiaTeslaA100").profiles] == ["a100_40gb", "a100_80gb"]


def test_what_only_some_accounts_get_is_noted():
    assert [note.code for note in choice(accelerator="NvidiaH100").notes] == ["not-for-everyone"]


@pytest.mark.parametrize("asked", [{"names": ("p100",)}, {"accelerator": "NvidiaTeslaP100"}])
def test_a_retired_card_is_refused_with_what_would_come(asked):
    """Kaggle's own push succeeds, and runs on another card in silence."""
    error = refusal(*asked.get("names", ()), accelerator=asked.get("accelerator"))
    assert isinstance(error, RefusedError)
    assert "retired the P100" in str(error)
    assert "launch --host kaggle --profile t4x2" in str(error)
    assert "--allow-substitute" in str(error)


@pytest.mark.parametrize("asked", [{"names": ("p100",)}, {"accelerator": "NvidiaTeslaP100"}])
def test_a_substitute_that_is_allowed_is_planned_and_said(asked):
    chosen = choice(*asked.get("names", ()), accelerator=asked.get("accelerator"), allow_substitute=True)
    assert (chosen.machine, chosen.profiles[0].name) == ("NvidiaTeslaT4", "t4x2")
    assert [note.code for note in chosen.notes] == ["card-substituted"]
    assert "the plan is for t4x2" in chosen.notes[0].message


@pytest.mark.parametrize("name", ["t4x2", "p100"])
def test_where_a_substitute_is_allowed_there_is_a_plan_for_each_card_that_may_come(name):
    assert [one.name for one in choice(name, allow_substitute=True).profiles] == ["t4x2", "p100"]
    assert [one.name for one in choice("cpu", allow_substitute=True).profiles] == ["cpu"]


@pytest.mark.parametrize(
    ("names", "accelerator", "words"),
    [
        (("titan_rtx",), None, ["no TITAN RTX", "--profile t4x2", "--profile cpu"]),
        (("mps",), None, ["no ", "--profile t4x2"]),
        (("t4",), None, ["2 x Tesla T4 or none", "--profile t4x2"]),
        (("titan_rtx",), "NvidiaTeslaT4", ["2 x Tesla T4, not TITAN RTX", "--profile t4x2"]),
        (("h100",), "NvidiaTeslaT4", ["not H100", 'accelerator = "NvidiaH100"']),
        (("t4x2",), "None", ["no card, not 2 x T4", 'accelerator = "NvidiaTeslaT4"']),
        (("l4_24gb",), "NvidiaL4", ["4 x NVIDIA L4, not L4 24 GB", 'accelerator = "NvidiaL4X1"']),
        ((), "TpuV5E8", ["not on a TPU", "--profile t4x2"]),
        ((), "TpuV38", ["not on a TPU"]),
    ],
)  # fmt: skip
def test_what_the_service_does_not_give_is_refused_with_what_it_gives(names, accelerator, words):
    error = refusal(*names, accelerator=accelerator, allow_substitute=True)
    assert error.exit_code == 3
    assert all(word in str(error) for word in words), str(error)


def test_an_unknown_accelerator_is_named_with_the_nearest():
    error = refusal(accelerator="NvidiaTeslaT5")
    assert isinstance(error, UnknownNameError)
    assert "did you mean 'NvidiaTeslaT4'" in str(error)


def test_a_profile_of_ones_own_makes_a_machine_usable_that_ours_do_not_name():
    own = KNOWN["l40s"].model_copy(
        update={"name": "l4x4", "count": 4, "memory_gb": 24, "probe_names": ("NVIDIA L4",)}
    )
    settings = KaggleSettings(accelerator="NvidiaL4")
    without = {name: one for name, one in KNOWN.items() if name != "l4_24gb"}
    chosen = choose_machine("kaggle", settings, [], {**without, "l4x4": own})
    assert chosen.profiles == (own,)
    with pytest.raises(RefusedError, match="4 x NVIDIA L4, which no profile names"):
        choose_machine("kaggle", settings, [], without)
    assert choose_machine("kaggle", KaggleSettings(), [own], KNOWN).machine == "NvidiaL4"


@pytest.mark.parametrize("name", ["t4x2", "titan_rtx", "p100"])
def test_a_rehearsal_has_a_session_without_cards(name):
    """It costs none of the week's hours, and may imitate any card."""
    chosen = choice(name, rehearses=True)
    assert (chosen.machine, chosen.profiles[0].name) == ("None", name)
    assert expected_facts("kaggle-alice", chosen.machine, chosen.profiles[0]).gpus == ()


@pytest.mark.parametrize(
    "machine", [one for one in MACHINES if one.profiles], ids=lambda machine: machine.shape
)
def test_the_expected_cards_are_those_of_the_profile(machine):
    settings = KaggleSettings(accelerator=machine.shape)
    for one in choose_machine("kaggle", settings, [], KNOWN).profiles:
        facts = expected_facts("kaggle-alice", machine.shape, one)
        assert facts.host_id == "kaggle-alice"
        assert len(choose_gpus(one, facts, 99)) == machine.cards
        assert {gpu.memory_mib for gpu in facts.gpus} <= {one.memory_mib}
        assert facts.room_gb == 20


def test_two_t4_are_two_ranks_and_nothing_is_leased():
    made, facts = plan_of(choice())
    assert (made.runtime, made.split.ranks, made.profile.name) == ("kaggle", 2, "t4x2")
    assert (made.allocation.how, made.allocation.cards, made.allocation.kind) == ("given", 2, "t4x2")
    assert not any(
        finding.level == "refuse"
        for finding in backend_of(KAGGLE).planning.check(made, facts, KAGGLE, wheels())
    )


def test_a_precision_that_the_card_excludes_is_refused_by_the_ladder_as_elsewhere():
    with pytest.raises(RefusedError, match="bf16"):
        plan_of(choice(), asked="bf16")


def test_the_plan_for_another_card_is_refused_by_the_gate_as_elsewhere():
    made, _ = plan_of(choice("h100"))
    facts = expected_facts("kaggle-alice", "NvidiaTeslaT4", KNOWN["t4x2"])
    assert "card-mismatch" in {
        one.code
        for one in backend_of(KAGGLE).planning.check(made, facts, KAGGLE, wheels())
        if one.level == "refuse"
    }


def test_the_torch_of_the_image_would_be_refused_for_a_p100():
    """Which is what people met in 2026: the card was there, and the first operation failed."""
    facts = expected_facts("kaggle-alice", "NvidiaTeslaT4", KNOWN["p100"])
    made = plan(KNOWN["p100"], KAGGLE, JOB, runtime="kaggle", resources=SESSION)
    assert "torch-unfit" in {
        one.code
        for one in backend_of(KAGGLE).planning.check(made, facts, KAGGLE, wheels())
        if one.level == "refuse"
    }
