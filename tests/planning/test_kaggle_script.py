"""The script of a segment: it is read by Python alone, read back by any client, and the same for the same run."""

import hashlib
import io
import json
import lzma
import os
import random
import subprocess
import sys
import tarfile
import time

import pytest
from testbed.client import REPOSITORY
from testbed.profiles import profiles

from launcher.backends.kaggle.kaggle_host import KaggleSettings
from launcher.backends.kaggle.kaggle_machines import choose_machine
from launcher.backends.kaggle.kaggle_script import (
    LINE,
    MAX_BYTES,
    MAX_RAW_BYTES,
    fits,
    may_fit,
    parts,
    payload,
    payload_of,
    script,
    unpacked,
    write_tree,
)
from launcher.backends.kaggle.kaggle_session import segment_cards, session
from launcher.backends.spool.segment_files import Member
from launcher.backends.spool.segment_settings import SegmentSettings, SegmentTree
from launcher.config.resolve import wheels
from launcher.errors import BadFileError
from launcher.transport.agent_file import agent_file
from launcher.values.plan import Plan, SegmentCards, TorchWheel

RUN = "261125-sft-aaaa11"
SETTINGS = SegmentSettings(run=RUN, segment=1, session_s=30600.0, place_id="kaggle-alice", internet=True)
FILES = [
    Member.of("work/code/train.py", b"print('trained')\n"),
    Member.of("work/code/run.sh", b"#!/bin/sh\n", is_executable=True),
    Member.of("control/plan.json", b"{}\n"),
    Member.of("work/code/names äöü \\ ' \"/x.txt", b""),
    Member("work/code/link", 0, io.BytesIO, link="train.py"),
    Member("work/code/empty", 0, io.BytesIO, is_folder=True),
]
AGENT = """
import json, os, sys
def tree(top):
    return {os.path.relpath(os.path.join(at, name), top): os.access(os.path.join(at, name), os.X_OK)
            for at, _, names in os.walk(top) for name in names}
print(json.dumps({"words": sys.argv[1:], "isolated": sys.flags.isolated, "files": tree(sys.argv[2]), "pid": os.getpid()}))
"""


def members(count, size, seed=0):
    """Files that no compression makes smaller."""
    numbers = random.Random(seed)
    return [Member.of(f"work/code/{number}.bin", numbers.randbytes(size)) for number in range(count)]


def test_the_script_unpacks_itself_and_runs_the_agent(tmp_path):
    """By a Python that has nothing of ours; the agent has its folder, the outputs' and the inputs'."""
    path = tmp_path / "script.py"
    path.write_text(script(payload(AGENT.encode(), SETTINGS, FILES)))
    env = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(tmp_path),
        "LAUNCH_KAGGLE_WORKING": "/w",
        "LAUNCH_KAGGLE_INPUT": "/i",
    }
    with subprocess.Popen(
        [sys.executable, "-I", str(path)], env=env, cwd="/", stdout=subprocess.PIPE, text=True
    ) as process:
        said = json.loads(process.communicate(timeout=180)[0])
    assert process.returncode == 0
    verb, folder, *places = said["words"]
    assert (verb, places, said["isolated"]) == ("segment", ["/w", "/i"], 1)
    assert said["files"].pop("agent.pyz") is False
    names = {"segment.json": False, **{f"run/{file.path}": file.is_executable for file in FILES[:-1]}}
    assert said["files"] == names
    assert os.listdir(os.path.join(folder, "run/work/code/empty")) == []
    assert os.readlink(os.path.join(folder, "run/work/code/link")) == "train.py"


def test_without_the_testbeds_folders_they_are_kaggles(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(script(payload(b"import sys; print(sys.argv[3:])", SETTINGS, FILES)))
    env = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, str(path)], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == "['/kaggle/working', '/kaggle/input']\n"


def test_a_script_that_was_damaged_says_so_and_starts_nothing(tmp_path):
    text = script(payload(b"print('started')", SETTINGS, FILES))
    at = text.index('PAYLOAD = """\n') + 40
    path = tmp_path / "script.py"
    path.write_text(text[:at] + ("0" if text[at] != "0" else "1") + text[at + 1 :])
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "not as it was pushed" in done.stderr
    assert done.stdout == ""


def test_the_agent_and_a_small_run_leave_room():
    """At least 400 kB of what may be pushed is for the code and the data."""
    text = script(payload(agent_file().data, SETTINGS, FILES))
    assert len(text.encode()) < MAX_BYTES - 400_000
    assert max(map(len, text.splitlines())) <= LINE + 10
    assert text.isascii()


def test_the_same_run_gives_the_same_bytes(monkeypatch):
    """Whenever it is packed, in whatever order its files are found."""
    first = payload(AGENT.encode(), SETTINGS, FILES)
    monkeypatch.setattr(time, "time", lambda: 1e9)
    assert payload(AGENT.encode(), SETTINGS, FILES[::-1]) == first
    assert script(first) == script(first)


@pytest.mark.parametrize(
    "change", [str, lambda text: text.replace("\n", "\r\n"), lambda text: f"\n{text}\n\n", str.strip]
)
def test_a_client_without_the_runs_files_finds_them_in_the_script(change):
    """As a service gives it back, which may have touched the ends of lines."""
    packed = payload(AGENT.encode(), SETTINGS, FILES)
    assert payload_of(change(script(packed))) == packed
    files = unpacked(packed)
    assert files["agent.pyz"] == AGENT.encode()
    assert SegmentSettings.model_validate_json(files["segment.json"]) == SETTINGS
    assert files["run/work/code/train.py"] == b"print('trained')\n"


@pytest.mark.parametrize(
    "text", ["", "print('hello')\n", script(b"x").replace("PAYLOAD", "PAYLOADS"), script(b"x")[:-60]]
)
def test_another_kernels_source_is_refused(text):
    with pytest.raises(BadFileError, match="not a script of launcher's"):
        payload_of(text)


def test_a_changed_script_is_refused():
    text = script(payload(b"agent", SETTINGS, FILES))
    with pytest.raises(BadFileError, match="was changed"):
        payload_of(text.replace(text[-60:-50], "0123456789"))


@pytest.mark.parametrize("name", ["../x", "/etc/x", "run/../../x"])
def test_a_payload_that_leads_elsewhere_is_refused(name):
    """What a service gives back is data."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(BadFileError, match="holds"):
        unpacked(lzma.compress(buffer.getvalue()))
    with pytest.raises(BadFileError, match="cannot be read"):
        unpacked(b"no archive")


# what is too large


def test_a_tree_that_is_too_large_is_an_archive_that_is_named_by_its_contents(tmp_path):
    """As an independent reader sees it; the rest of the run's folder is not in it."""
    path = tmp_path / "tree"
    with path.open("wb") as file:
        tree = write_tree(file, FILES)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert tree == SegmentTree(file=f"launch-{digest[:16]}.tree", sha256=digest)
    assert tree.dataset == f"launch-{digest[:16]}"
    listed = subprocess.run(
        ["tar", "-tzf", path], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}
    ).stdout
    assert b"code/train.py\n" in listed
    assert b"plan.json" not in listed
    again = io.BytesIO()
    assert write_tree(again, FILES[::-1]) == tree
    assert again.getvalue() == path.read_bytes()


def test_the_parts_of_a_script_say_what_takes_the_room():
    small = parts(agent_file().data, SETTINGS, FILES)
    assert small.tree is not None
    assert small.archived == 0
    assert small.agent > small.stub > small.tree > 0
    assert 0.9 < small.total / (small.stub + small.agent + small.records + small.tree) <= 1.02
    assert small.total == len(script(payload(agent_file().data, SETTINGS, FILES)))


def test_a_large_tree_is_not_in_the_script():
    files = [*FILES, *members(9, 100_000)]
    found = parts(agent_file().data, SETTINGS, files)
    assert found.tree is None
    assert found.archived == sum(file.size for file in files if file.path.startswith("work/"))
    assert found.total < MAX_BYTES
    assert not fits(script(payload(agent_file().data, SETTINGS, files)))
    assert may_fit(files)


def test_a_tree_that_can_never_fit_is_not_even_read():
    def unread():
        raise AssertionError("it was opened")

    huge = Member("work/data/x.bin", MAX_RAW_BYTES + 1, unread)
    assert not may_fit([huge])
    assert parts(b"agent", SETTINGS, [*FILES, huge]).archived > MAX_RAW_BYTES


# the settings of a segment


def plan_of(case):
    return Plan.model_validate_json((REPOSITORY / "tests" / "cases" / case / "plan.json").read_bytes())


def test_the_settings_of_a_segment_are_written_as_its_reader_expects():
    """One golden text: the agent in the kernel reads these keys."""
    settings = SETTINGS.model_copy(
        update={
            "tree": SegmentTree(file="launch-0123456789abcdef.tree", sha256="0" * 64),
            "cards": (
                SegmentCards(names=("Tesla T4",), memory_mib=(13107.2, 18022.4), count=2, title="2 x T4"),
            ),
            "requirements": ("peft==0.19.1",),
            "torch": (TorchWheel(capability="6.0", requirement="torch==2.7.1+cu126", index="https://x"),),
        }
    )
    assert settings.to_file() == (
        b'{"cards":[{"count":2,"memory_mib":[13107.2,18022.4],"names":["Tesla T4"],"plan":null,"title":"2 x T4"}],'
        b'"earlier":false,"internet":true,"place_id":"kaggle-alice","requirements":["peft==0.19.1"],"run":"261125-sft-aaaa11",'
        b'"segment":1,"session_s":30600.0,"torch":[{"capability":"6.0","index":"https://x","python":"",'
        b'"requirement":"torch==2.7.1+cu126"}],'
        b'"tree":{"file":"launch-0123456789abcdef.tree","sha256":"' + b"0" * 64 + b'"},"version":1}\n'
    )


def test_the_cards_of_a_segment_are_those_that_a_probe_would_take_for_the_profile():
    (cards,) = segment_cards(plan_of("sft_on_t4x2"))
    profile = profiles()["t4x2"]
    assert (cards.names, cards.count, cards.title, cards.plan) == (
        profile.probe_names,
        2,
        "2 x T4 16 GB",
        None,
    )
    low, high = cards.memory_mib
    for memory_mib in (low - 1, low, 15360, high, high + 1):
        assert profile.is_reported_as("Tesla T4", memory_mib) == (low <= memory_mib <= high)


@pytest.mark.parametrize("case", ["sft_on_cpu", "sft_on_mps"])
def test_a_run_without_cards_has_none_in_its_segments(case):
    assert segment_cards(plan_of(case)) == ()
    rehearsed = plan_of("sft_on_t4x2").model_copy(update={"rehearsed": True})
    assert segment_cards(rehearsed) == ()


def test_the_plans_for_other_cards_travel_along_with_a_torch_for_each():
    """A P100 that the service gives all the same gets its own precision and batch, and a torch that has code for it."""
    known = profiles()
    choice = choose_machine("kaggle", KaggleSettings(), [known["p100"]], known, allow_substitute=True)
    assert [one.name for one in choice.profiles] == ["t4x2", "p100"]
    plan, other = plan_of("sft_on_t4x2"), plan_of("sft_on_p100")
    given = session(choice, [other], (), wheels())
    first, second = segment_cards(plan.model_copy(update={"session": given}))
    assert (first.title, first.plan) == ("2 x T4 16 GB", None)
    assert (second.title, second.count) == ("Tesla P100 16 GB", 1)
    replaced = {**plan.model_dump(), **second.plan.model_dump()}
    assert Plan.model_validate(replaced).split == other.split
    chosen = [(wheel.capability, wheel.python) for wheel in given.torch]
    assert chosen == [("7.5", "3.13"), ("7.5", "3.12"), ("6.0", "3.13"), ("6.0", "3.12")]
    assert {wheel.index.rpartition("/")[2] for wheel in given.torch[2:]} == {"cu126"}
    assert all(wheel.requirement.endswith("+cu126") for wheel in given.torch[2:])


def test_a_torch_that_the_job_pins_is_the_one_that_is_installed():
    known = profiles()
    choice = choose_machine("kaggle", KaggleSettings(), [known["t4x2"]], known)
    found = session(choice, [], ("torch==2.9.1",), wheels()).torch
    assert [wheel.requirement.partition("+")[0] for wheel in found] == ["torch==2.9.1"] * 2
    assert (
        session(choice, [], ("torch==1.13.1",), wheels()).torch == ()
    )  # which has no wheel for the image's Pythons
