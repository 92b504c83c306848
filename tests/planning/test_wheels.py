"""Which torch a card gets: cases of profile, driver and pin as the facts say, and what the table itself must keep."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from testbed.profiles import profile, profiles

from launcher.base.resources import data_folder
from launcher.config.resolve import wheels
from launcher.errors import BadFileError, RefusedError
from launcher.planning.software.wheel_choice import TorchTarget, choose, objection, unfit, unimported_torch
from launcher.planning.software.wheels import WheelTable
from launcher.values.parsing import build
from launcher.values.profile import Profile
from launcher.values.software.image import BuildOptions
from launcher.values.software.packages import InstalledPackages

TABLE = wheels()
WRITTEN = tomllib.loads((data_folder("images") / "torch.toml").read_text())
NEWER = Profile(name="next", title="Next", kind="cuda", capability="13.0", memory_gb=288)
B200 = Profile(name="b200", title="B200", kind="cuda", capability="10.3", memory_gb=288)
RTX_5090 = Profile(name="rtx_5090", title="RTX 5090", kind="cuda", capability="12.0", memory_gb=32)
V100 = Profile(name="v100", title="V100", kind="cuda", capability="7.0", memory_gb=32)
K80 = Profile(name="k80", title="K80", kind="cuda", capability="3.7", memory_gb=12)
OURS = {"next": NEWER, "b200": B200, "rtx_5090": RTX_5090, "v100": V100, "k80": K80}


def place(name, driver=None, **more):
    return TorchTarget(OURS.get(name) or profile(name), driver, **more)


@pytest.mark.parametrize(
    ("name", "driver", "pin", "torch", "built"),
    [
        # Pascal: its line ends with 2.14; a driver that says CUDA 13 changes nothing
        ("p100", None, "", "2.14.1", "cu126"),
        ("p100", "580.65.06", "", "2.14.1", "cu126"),
        ("p100", "580.65.06", ">=2.6", "2.14.1", "cu126"),
        ("p100", "580.65.06", "==2.13.0", "2.13.0", "cu126"),
        ("p100", "580.65.06", "==2.7.1", "2.7.1", "cu126"),
        ("p100", "535.183.01", "==2.9.1", "2.9.1", "cu126"),
        ("p100", "470.256.02", "", "2.7.1", "cu118"),
        ("v100", "580.65.06", "", "2.14.1", "cu126"),
        ("v100", "580.65.06", "==2.10.0", "2.10.0", "cu128"),
        ("k80", "470.256.02", "", "2.0.1", "cu117"),
        # Turing, by driver
        ("titan_rtx", None, "", "2.13.0", "cu126"),
        ("titan_rtx", "470.256.02", "", "2.7.1", "cu118"),
        ("titan_rtx", "525.60.13", "", "2.13.0", "cu126"),
        ("titan_rtx", "570.211.01", "", "2.13.0", "cu126"),
        ("titan_rtx", "580.65.06", "", "2.13.0", "cu130"),
        ("titan_rtx", "580.65.06", "==2.15.0", "2.15.0", "cu132"),
        ("t4", "550.54.14", "<2.9", "2.8.0", "cu128"),
        # no build has sm_89: code for 8.6 runs there
        ("l40s", "580.95.05", "", "2.13.0", "cu130"),
        ("l40s", "550.163.01", "", "2.13.0", "cu126"),
        ("l40s", "550.163.01", "==2.14.0", "2.14.0", "cu126"),
        ("l40s", None, "==2.15.0", "2.15.0", "cu132"),
        ("a100_80gb", "525.147.05", "==2.1.2", "2.1.2", "cu121"),
        ("a100_80gb", "450.248.02", ">=2.1", "2.7.1", "cu118"),
        ("a100_40gb", "580.65.06", "==2.13.0+cu126", "2.13.0", "cu126"),
        ("h100", "535.104.05", "", "2.13.0", "cu126"),
        ("h100", "535.104.05", "==2.9.*", "2.9.1", "cu128"),
        ("h200", "580.65.06", "==2.0.1", "2.0.1", "cu118"),
        ("h200", "580.65.06", "!=2.13.0,>=2.12", "2.15.0", "cu132"),
        # Blackwell, and what is newer than the table
        ("rtx_5090", "570.86.16", "", "2.11.0", "cu128"),
        ("rtx_5090", "580.65.06", "", "2.13.0", "cu130"),
        ("rtx_5090", "570.86.16", "==2.7.1", "2.7.1", "cu128"),
        ("b200", "580.65.06", "", "2.13.0", "cu130"),
        ("b200_180gb", "570.86.16", "", "2.11.0", "cu128"),
        ("b300_288gb", "580.65.06", "", "2.13.0", "cu130"),
        ("rtx_pro_6000_blackwell_96gb", "570.86.16", "==2.7.1", "2.7.1", "cu128"),
        ("next", "600.10.01", "", "2.10.0", "cu130"),  # the last whose PTX is known
        # no card
        ("cpu", None, "", "2.13.0", "cpu"),
        ("cpu", None, "==2.9.1+cpu", "2.9.1", "cpu"),
        ("cpu", None, "==2.9.1+cu128", "2.9.1", "cu128"),
        ("l40s", "580.95.05", "==2.13", "2.13.0", "cu130"),
        ("mps", None, "", "2.13.0", None),
        # versions that the table does not list
        ("l40s", "580.95.05", "==2.16.0", "2.16.0", "cu132"),
        ("p100", None, "==2.8.1", "2.8.1", "cu126"),
    ],
)
def test_a_card_gets_the_torch_that_the_facts_say(name, driver, pin, torch, built):
    """Version and build; the index is that of the build."""
    found = choose(TABLE, place(name, driver), SpecifierSet(pin))
    assert (found.torch, found.build) == (torch, built)
    assert found.url == (f"https://download.pytorch.org/whl/{built}" if built else None)
    assert found.why


@pytest.mark.parametrize(
    ("name", "driver", "pin", "why", "nearest"),
    [
        ("p100", "580.65.06", "==2.15.0", "cu132 has no code for capability 6.0", "2.14.1 (cu126)"),
        ("p100", None, "==2.14.1+cu130", "cu130 has no code for capability 6.0", "2.14.1 (cu126)"),
        ("p100", None, "==2.16.0", "has no code for capability 6.0", "2.14.1 (cu126)"),
        ("v100", "580.65.06", ">=2.15", "has no code for capability 7.0", "2.14.1 (cu126)"),
        ("titan_rtx", "470.256.02", "==2.13.0", "cu126 needs driver 525.60.13", "2.7.1 (cu118)"),
        ("h200", "570.86.16", "==2.15.0", "cu130 needs driver 580.65.06", "2.14.1 (cu126)"),
        ("h200", "580.65.06", "==1.13.1", "cu117 has no code for capability 9.0", "2.0.1 (cu118)"),
        ("h200", "580.65.06", "==1.10.0", "no such torch is known", "2.0.1 (cu118)"),
        ("rtx_5090", "580.65.06", "==2.6.0", "cu124 has no code for capability 12.0", "2.7.0 (cu128)"),
        ("l40s", "580.65.06", "==2.13.0+cpu", "a build without CUDA sees no card", "2.13.0 (cu130)"),
        ("l40s", "580.65.06", "==2.13.0+cu128", "torch 2.13.0 has no build cu128: cu130, cu126", "2.13.0 (cu130)"),
        ("cpu", None, "<1.0", "no such torch is known", "2.15.0"),
    ],
)  # fmt: skip
def test_an_impossible_pin_is_refused_with_the_nearest_possible_one(name, driver, pin, why, nearest):
    """Each build of it is named with what stands against it."""
    with pytest.raises(RefusedError) as caught:
        choose(TABLE, place(name, driver), SpecifierSet(pin))
    assert why in str(caught.value)
    assert f"nearest that can: {nearest}   requirements = " in str(caught.value)


@pytest.mark.parametrize(
    ("pin", "said"), [("===newest", "no version of torch"), ("==2.6.0,==2.13.0", "one version of torch")]
)
def test_a_pin_that_is_none_is_refused_in_words(pin, said):
    """And two that exclude each other."""
    with pytest.raises(RefusedError, match=said):
        choose(TABLE, place("l40s"), SpecifierSet(pin))


def test_a_driver_that_is_too_old_for_all_is_said_to_be():
    """And a card that is too old for all, too."""
    with pytest.raises(RefusedError, match=r"a newer driver than 440\.33\.01 is needed"):
        choose(TABLE, place("titan_rtx", "440.33.01"))
    ancient = Profile(name="k10", title="K10", kind="cuda", capability="3.0", memory_gb=4)
    with pytest.raises(RefusedError, match=r"no torch of this table runs there$"):
        choose(TABLE, TorchTarget(ancient))


@pytest.mark.parametrize(
    ("name", "driver", "pin", "notes"),
    [
        ("p100", "580.65.06", "", ["torch 2.14.1 is the last with code for", "driver branch 580 is the last for this card"]),
        ("p100", "470.256.02", "", ["torch 2.14.1 is the last with code for", "driver branch 580 is the last for this card"]),
        ("next", "600.10.01", "", ["an experimental build", "newer than every build of this table"]),
        ("rtx_5090", "570.86.16", "==2.7.1", ["cu128 of torch 2.7.1 is an experimental build"]),
        ("l40s", None, "==2.16.0", ["torch 2.16.0 is not in the table"]),
        ("l40s", "580.65.06", "", []),
    ],
)  # fmt: skip
def test_what_its_user_should_know_of_a_choice_is_said(name, driver, pin, notes):
    """The end of a line, experiments, and what is taken for granted; nothing of an ordinary card."""
    found = choose(TABLE, place(name, driver), SpecifierSet(pin)).notes
    assert len(found) == len(notes)
    assert all(note in text for note, text in zip(notes, found, strict=True))


def test_a_python_without_wheels_gets_an_older_torch():
    """Or is told so, where one version is asked for."""
    assert choose(TABLE, place("l40s", python=(3, 9))).torch == "2.8.0"
    assert choose(TABLE, place("cpu", python=(3, 15))).torch == "2.15.0"
    with pytest.raises(RefusedError, match=r"has wheels for Python 3\.11 to 3\.15, not 3\.10"):
        choose(TABLE, place("l40s", python=(3, 10)), SpecifierSet("==2.15.0"))


def test_another_processor_has_other_builds():
    """A GH200's wheels: no code for Turing."""
    assert choose(TABLE, place("h100", "580.65.06", machine="aarch64")).build == "cu130"
    with pytest.raises(RefusedError):
        choose(TABLE, place("titan_rtx", "580.65.06", machine="aarch64"))


@pytest.mark.parametrize(
    ("name", "driver", "installed", "why"),
    [
        ("p100", "580.65.06", "2.13.0", "torch 2.13.0: cu130 has no code for capability 6.0"),
        ("p100", "580.65.06", "2.13.0+cu126", None),
        ("titan_rtx", "470.256.02", "2.9.1", "torch 2.9.1: cu128 needs driver 525.60.13, and the host has 470.256.02"),
        ("l40s", None, "2.13.0+cpu", "torch 2.13.0+cpu has no CUDA"),
        ("l40s", None, "2.13.0", None),
        ("l40s", None, "2.99.0", None),
        ("l40s", None, "2.13.0+rocm6", None),
        ("cpu", None, "2.13.0+cpu", None),
    ],
)  # fmt: skip
def test_a_torch_that_is_installed_is_held_against_its_card(name, driver, installed, why):
    """Nothing is said of what the table does not know."""
    assert objection(TABLE, place(name, driver), installed) == why


@given(
    st.sampled_from([*profiles().values(), NEWER, B200, V100, K80]),
    st.none() | st.sampled_from(["450.80.02", "470.1", "525.60.13", "550.1", "580.65.06", "999.1"]),
    st.sampled_from(["", ">=2.6", "<2.8", "==2.13.0", "==2.15.0", "==2.7.*", "==1.13.1"]),
)
def test_what_is_chosen_always_runs_there_and_was_asked_for(card, driver, pin):
    """By the table's own rows, read here once more."""
    try:
        found = choose(TABLE, TorchTarget(card, driver), SpecifierSet(pin))
    except RefusedError:
        return
    assert found.torch in SpecifierSet(pin)
    if found.build in (None, "cpu"):
        return
    rows = [one for one in WRITTEN["build"] if one["name"] == found.build]
    (row,) = [one for one in rows if found.torch in SpecifierSet(one["torch"])]
    major, minor = card.compute
    codes = [tuple(map(int, code.split("."))) for code in row["x86_64"]]
    is_newer = "ptx" in row and card.compute > tuple(map(int, row["ptx"].split(".")))
    assert is_newer or any(code[0] == major and code[1] <= minor for code in codes)
    least = WRITTEN["drivers"][found.build[2:4]]
    assert driver is None or [int(n) for n in driver.split(".")] >= [int(n) for n in least.split(".")]


@pytest.mark.parametrize(
    "name", ["gh200_96gb", "gb200_186gb", "b200_180gb", "b300_288gb", "rtx_5090_32gb", "gb10_128gb"]
)
@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_new_cards_get_code_of_their_own_on_both_processors(name, machine):
    """Not PTX, which measured wheels do not name."""
    card = profile(name)
    found = choose(TABLE, TorchTarget(card, machine=machine))
    rows = [
        one
        for one in WRITTEN["build"]
        if one["name"] == found.build and found.torch in SpecifierSet(one["torch"])
    ]
    codes = [tuple(map(int, code.split("."))) for code in rows[0][machine]]
    assert any(code[0] == card.compute[0] and code <= card.compute for code in codes)


def test_a_card_that_is_newer_than_the_table_is_not_said_to_be_left_behind():
    found = choose(TABLE, place("next"))
    assert any("is newer than every build of this table" in note for note in found.notes)
    assert not any("later releases have none" in note for note in found.notes)


def test_every_profile_of_ours_gets_a_torch():
    """Without a driver too."""
    assert all(choose(TABLE, TorchTarget(one)).torch for one in profiles().values())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table["release"].reverse(), "releases must be in order"),
        (lambda table: table["release"][-1]["builds"].append("cu999"), "expected one row of"),
        (lambda table: table.update(tested="9.9.9"), "expected one of the releases"),
        (lambda table: table["drivers"].pop("13"), "CUDA 13 is missing"),
        (lambda table: table["build"][0].update(torch="newest"), "expected versions such as"),
        (lambda table: table["release"][0].update(torch="new"), "expected a version such as"),
    ],
)
def test_a_table_that_does_not_hold_together_is_refused(change, said):
    """A user's own table passes the same checks."""
    table = tomllib.loads((data_folder("images") / "torch.toml").read_text())
    change(table)
    with pytest.raises(BadFileError, match=said):
        build(WheelTable, table, file="torch.toml")


@pytest.mark.parametrize(
    ("name", "build", "unimported"),
    [
        ("l40s", {}, "2.13.0+cu130"),
        ("l40s", {"torch_index": ""}, None),
        ("l40s", {"torch_index": "https://mine"}, None),
        ("l40s", {"pip_conf": "[global]\nextra-index-url = https://mine\n"}, None),
        ("cpu", {}, ""),
        ("cpu", {"torch_index": ""}, ""),
        (None, {"torch_index": ""}, ""),
    ],
)
def test_torch_is_imported_where_only_that_tells_whether_it_runs_on_the_card(name, build, unimported):
    """The table has the architectures of an official build alone; without a card they do not matter."""
    profile = place(name).profile if name is not None else None
    assert unimported_torch("2.13.0+cu130", BuildOptions(**build), profile) == unimported


def packages(**more):
    told = {"python": "3.12", "torch": "2.13.0+cu130", "cuda": "13.0", "conflicts": ()}
    codes = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
    return InstalledPackages.model_validate({**told, "architectures": codes, **more})


@pytest.mark.parametrize(
    ("name", "more", "chosen", "said"),
    [
        ("l40s", {}, "2.13.0+cu130", []),
        ("l40s", {"torch": "2.13.0"}, "2.13.0+cu130", []),
        ("l40s", {}, None, []),
        ("p100", {}, "2.13.0+cu130", ["no code for capability 6.0: sm_75 sm_80"]),
        ("p100", {}, None, ["no code for capability 6.0"]),
        ("l40s", {}, "2.13.0+cu126", ["torch is 2.13.0+cu130, not 2.13.0+cu126"]),
        ("l40s", {"torch": "2.12.0+cu130"}, "2.13.0+cu130", ["torch is 2.12.0+cu130, not"]),
        (
            "l40s",
            {"torch": "2.13.0+cpu", "cuda": None, "architectures": ()},
            "2.13.0+cu130",
            ["torch is", "has no CUDA"],
        ),
        ("l40s", {"torch": "2.13.0+cpu", "cuda": None, "architectures": ()}, None, []),
        ("cpu", {"torch": "2.13.0+cpu", "cuda": None, "architectures": ()}, "2.13.0+cpu", []),
        ("l40s", {"torch": "2.13.0+cu126"}, "2.13.0", []),
        ("l40s", {"torch": "2.13.0"}, "2.13", []),
        ("next", {}, None, []),
        ("b200", {}, None, []),
        ("p100", {"architectures": None}, "2.13.0+cu130", []),
        (
            "l40s",
            {"conflicts": ("peft 1 requires b",)},
            "2.13.0+cu130",
            ["do not fit together: peft 1 requires b"],
        ),
        ("l40s", {"conflicts": ("pygobject 3 requires pycairo",)}, "2.13.0+cu130", []),
        ("l40s", {"torch": None, "error": "OSError: libcudart.so.13"}, "2.13.0+cu130", ["libcudart.so.13"]),
        ("l40s", {"torch": None, "error": "ModuleNotFoundError: No module named 'torch'"}, None, []),
        ("l40s", {"torch": None}, "2.13.0+cu130", ["torch 2.13.0+cu130 is not installed"]),
    ],
)
def test_what_packages_say_of_themselves_is_held_against_card_and_choice(name, more, chosen, said):
    """The second look, after a build: it needs no card, and does not ask the table, which may be wrong."""
    found = unfit(packages(**more), place(name).profile, chosen, ["peft>=0.18"])
    assert len(found) == len(said)
    assert all(word in text for word, text in zip(said, found, strict=True))
