"""A profile for every NVIDIA card: one that ships, by what real drivers report, or one that is derived from that."""

import tomllib
from pathlib import Path

import pytest
from testbed.profiles import profile, profiles

from launcher.backends.base.probing import NO_JOB, CardRequest, Probing
from launcher.config.lookup import Lookup
from launcher.copy.request import Request
from launcher.planning.derived_profile import derived, profile_name
from launcher.planning.gate import check
from launcher.planning.placement import as_probed, choose_gpus, match_profile
from launcher.planning.precision.ladder import LadderInputs, ladder
from launcher.planning.precision.memory import usable_gb
from launcher.runs.launch.dry_run import preview
from launcher.values.facts import Facts
from launcher.values.host import LOCAL

TABLE = tomllib.loads(Path(__file__).with_name("probed_cards.toml").read_text())
SHIPPED, DERIVED = TABLE["cards"], TABLE["derived"]
OLDER = {"h100", "h200", "l40s", "p100", "t4", "t4x2", "titan_rtx"}
"""Profiles that have shipped before there was a rule for their names."""


def gpu(name, memory_mib, capability, index=0, **more):
    known = {"name": name, "memory_mib": memory_mib, "capability": capability, "driver": "580.65.06"}
    return {"index": index, "uuid": f"GPU-{index}", **known, **more}


def facts(*gpus, **more):
    return Facts.model_validate(
        {
            "host_id": "0" * 16, "boot_id": "b", "hostname": "h", "user": "u", "platform": "linux", "machine": "x86_64",
            "cpus": 2, "free_gb": 100.0, "root": "/r", "python": "3.11.2", "gpus": gpus, **more,
        }
    )  # fmt: skip


def there(told, gpus=None, named=()):
    return Probing().cards(LOCAL, NO_JOB, CardRequest(named, gpus=gpus), told, Lookup()).profile


@pytest.fixture
def train(tmp_path, monkeypatch):
    """A folder with a script that decides everything itself."""
    (tmp_path / "train.py").write_text("print('trained')\n")
    monkeypatch.chdir(tmp_path)


def test_every_profile_that_ships_was_seen_as_a_driver_reports_it():
    cards = {name for name, one in profiles().items() if one.kind == "cuda"}
    assert {row[3] for row in SHIPPED} >= cards - {"t4x2", "gb10_128gb"}


@pytest.mark.parametrize(
    ("name", "memory_mib", "capability", "expected", "title"), [*([*row, None] for row in SHIPPED), *DERIVED]
)
def test_a_plain_script_and_a_program_run_on_any_card(train, name, memory_mib, capability, expected, title):
    """The dry run of a saved probe passes, and the plan has the memory of the card that was probed."""
    told = facts(gpu(name, memory_mib, capability))
    for words in (("python", "train.py"), ("nvidia-smi",)):
        shown = preview(Request(words=words), told)
        assert [one for one in shown.findings if one.level == "refuse"] == []
        card = shown.plan.profile
        assert (card.name, card.capability, card.memory_mib) == (expected, capability, memory_mib)
        assert card.memory_bytes == memory_mib * 2**20
        assert card.is_derived == (title is not None)
        if title is not None:
            assert (card.title, card.peak, card.probe_names) == (title, None, (name,))


@pytest.mark.parametrize(("name", "memory_mib", "capability", "expected"), SHIPPED)
def test_evidence_and_images_stay_when_a_profile_ships_later(name, memory_mib, capability, expected):
    """They are kept by the profile's name: it is the same before."""
    before = [one for one in profiles().values() if name not in one.probe_names]
    one = match_profile(facts(gpu(name, memory_mib, capability)), before)
    assert one.is_derived
    assert one.name == expected or expected in OLDER
    assert ladder(LadderInputs(one, "lora")).rungs == ladder(LadderInputs(profile(expected), "lora")).rungs


@pytest.mark.parametrize("name", sorted(set(profiles()) - OLDER - {"cpu", "mps"}))
def test_the_name_of_a_profile_is_its_cards_names_by_one_rule(name):
    one = profile(name)
    assert {profile_name(reported, one.memory_mib) for reported in one.probe_names} == {name}


@pytest.mark.parametrize(
    ("reported", "memory_mib", "name"),
    [
        ("Quadro RTX 5000 with Max-Q Design", 16384, "rtx_5000_with_design_16gb"),
        ("NVIDIA Graphics Device", 95830, "graphics_device_94gb"),
        ("NVIDIA", 13312, "card_13gb"),
        ("GRID M10-0B", 512, "m10_0b_0.5gb"),
        ("../../\x1b[31mrm -rf", 8192, "31mrm_rf_8gb"),
        ("X" * 500, 8192, "x" * 36 + "_8gb"),
    ],
)
def test_a_name_is_safe_whatever_a_driver_reports(reported, memory_mib, name):
    """In a path, a command and the tag of an image."""
    (one,) = derived(facts(gpu(reported, memory_mib, "9.0")), profiles().values())
    assert one.name == name


@pytest.mark.parametrize("memory_mib", [None, 0, -8192, 1, 1e300])
@pytest.mark.parametrize("capability", [None, "", "7", "7.0\n", "x.y", "-1.0"])
def test_what_is_no_cards_memory_or_capability_derives_nothing(memory_mib, capability):
    """What a host reports is data."""
    for one in (gpu("X", memory_mib, "7.0"), gpu("X", 8192, capability)):
        assert derived(facts(one), profiles().values()) == ()


def test_a_new_form_of_a_card_is_the_card():
    (one,) = derived(facts(gpu("NVIDIA B300 PCIe", 275040, "10.3")), profiles().values())
    assert (one.name, one.title, one.peak) == ("b300_288gb", "B300 288 GB", profile("b300_288gb").peak)
    assert one.probe_names[-1] == "NVIDIA B300 PCIe"
    (one,) = derived(facts(gpu("NVIDIA B300 PCIe", 275040, "11.0")), profiles().values())
    assert one.is_derived, "another capability is another card"


TWO_SIZES = [gpu("NVIDIA GeForce RTX 3080", 10240, "8.6", 0), gpu("NVIDIA GeForce RTX 3080", 12288, "8.6", 1)]
UNKNOWN = [
    gpu("NVIDIA TITAN V", 12066, "7.0", 0),
    gpu("NVIDIA H20", 97871, "9.0", 1),
    gpu("NVIDIA L4", 23034, "8.9", 2),
]


def test_cards_of_one_name_with_different_memory_are_two_kinds():
    told = facts(*TWO_SIZES)
    assert there(told).name == "rtx_3080_12gb"
    assert choose_gpus(there(told), told, 2) == ("GPU-1",)
    assert there(told, "GPU-0").name == "rtx_3080_10gb"


def test_of_several_unknown_cards_the_largest_is_taken_or_the_one_that_is_named():
    told = facts(*UNKNOWN)
    assert [one.name for one in derived(told, profiles().values())] == ["titan_v_12gb", "h20_96gb"]
    assert there(told).name == "h20_96gb"
    assert there(told, "GPU-0").name == "titan_v_12gb"
    assert there(told, "GPU-2").name == "l4_24gb"
    assert there(told, None, (profile("l4_24gb"),)).name == "l4_24gb"


def test_two_unknown_cards_are_planned_for_together(train):
    told = facts(*(gpu("NVIDIA TITAN V", 12066 - index, "7.0", index) for index in range(2)))
    shown = preview(Request(words=("python", "train.py"), gpus="2"), told)
    assert (shown.plan.profile.title, shown.plan.profile.count) == ("2 x TITAN V 12 GB (derived)", 2)
    assert shown.plan.profile.memory_mib == 12065, "that of the smaller one"
    assert [one for one in check(shown.plan, told) if one.level == "refuse"] == []


def test_the_memory_of_a_plan_is_that_of_the_smallest_card_that_it_may_get():
    told = facts(gpu("NVIDIA L40S", 46068, "8.9", 0), gpu("NVIDIA L40S", 45372, "8.9", 1))
    assert there(told).memory_mib == 45372
    assert there(told, "GPU-0").memory_mib == 46068
    assert as_probed(profile("l40s"), facts()).memory_mib == profile("l40s").memory_mib


@pytest.mark.parametrize(("memory_gb", "mib"), [(17.2, 10935), (38.7, 24605), (68.7, 49138), (None, None)])
def test_an_apple_gpu_has_a_part_of_the_macs_memory(memory_gb, mib):
    """By Metal's recommendation. Without a probe it is not known."""
    mac = facts(platform="darwin", machine="arm64", memory_gb=memory_gb)
    assert there(mac).memory_mib == mib
    assert profile("mps").memory_bytes is None


SHARED = [  # of public logs: names, the host's memory; capability
    ("NVIDIA GB10", 128.5, "12.1", "gb10_128gb"),
    ("NVIDIA Thor", 131.9, "11.0", "thor_128gb"),
    ("Orin (nvgpu)", 65.9, "8.7", "orin_nvgpu_64gb"),
    ("Orin (nvgpu)", 7.99, "8.7", "orin_nvgpu_8gb"),
]


@pytest.mark.parametrize(("name", "memory_gb", "capability", "expected"), SHARED)
def test_a_card_without_its_own_memory_has_a_part_of_its_hosts(train, name, memory_gb, capability, expected):
    """Its driver prints [N/A]; nothing is refused for that."""
    told = facts(gpu(name, None, capability), memory_gb=memory_gb)
    for words in (("python", "train.py"), ("nvidia-smi",)):
        shown = preview(Request(words=words), told)
        assert [one for one in shown.findings if one.level == "refuse"] == []
        card = shown.plan.profile
        assert (card.name, card.unified, card.memory_limits_mib) == (expected, True, None)
        assert card.memory_mib == pytest.approx(memory_gb * 1e9 / 2**20)
        assert 0.7 * memory_gb - 1 < usable_gb(card) < 0.84 * memory_gb


def test_a_card_that_is_known_or_in_slices_has_no_memory_of_its_host():
    known = facts(gpu("NVIDIA L40S", None, "8.9"), memory_gb=512.0)
    assert there(known).memory_mib == profile("l40s").memory_mib
    assert derived(facts(gpu("X", None, "9.0", mig=True), memory_gb=512.0), profiles().values()) == ()
    assert not there(facts(gpu("NVIDIA TITAN V", 12066, "7.0"), memory_gb=512.0)).unified
