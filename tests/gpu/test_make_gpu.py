"""`make gpu` itself: what it does with parts that fail, hang or have no time, and that a rehearsal never passes for a card."""

import json
import os
import subprocess
import sys
import time

import pytest
from gpu import card, environment, report, run, taken
from gpu.environment import UnfitError, lacking, python_with, read_card, requirements
from gpu.ledger import Ledger, distance, losses, read_lines
from gpu.marked_tests import outcomes
from gpu.materials import _question, _text
from gpu.parts import NOT_ON_A_CPU, PARTS, chosen
from gpu.station import Station
from gpu.trainings import ways
from testbed.client import REPOSITORY, is_gone, until
from testbed.wheels import make_wheel

MACHINE = {"card": "NVIDIA H100 80GB HBM3", "driver": "580.65.06", "CPUs": 16}
DONE = {
    "state": "done", "why": None, "seconds": 61.4, "date": "2026-11-25", "commit": "abc1234", "machine": MACHINE,
}  # fmt: skip
PART = """
import json, os, subprocess, sys, time
name, folder = sys.argv[1:3]
with open(os.path.join(folder, "rows.jsonl"), "w") as file:
    print(json.dumps({"machine": {"CPUs": 2}}), file=file, flush=True)
    print(json.dumps({"row": {"what": name, "ok": name != "kill"}}), file=file, flush=True)
    if name == "oom":
        left = [sys.executable, "-c", "import time; time.sleep(1000)", folder]
        pid = subprocess.Popen(left, start_new_session=True).pid
        open(os.environ["PIDS"], "w").write(str(pid))
        file.write('{"row": ')
        file.flush()
        time.sleep(1000)
    if name == "memory":
        raise ValueError("no memory")
"""


# the files


def test_a_part_s_result_replaces_its_own_and_no_other():
    """Parts that are run alone add to the same files."""
    first = report.merged(report.empty(is_rehearsed=False), "oom", {**DONE, "rows": [{"what": "a"}]})
    second = report.merged(first, "kill", {**DONE, "rows": [{"what": "b"}]})
    third = report.merged(second, "oom", {**DONE, "rows": [{"what": "c"}]})
    rows = {name: result["rows"] for name, result in third["parts"].items()}
    assert rows == {"oom": [{"what": "c"}], "kill": [{"what": "b"}]}
    assert [*first["parts"]] == ["oom"]


def test_a_failed_a_missing_and_a_good_part_each_say_so():
    """And every part has a section, in the order of the table."""
    good = {**DONE, "rows": [{"what": "the error", "found": "cuda-oom | x", "witness": None, "ok": True}]}
    failed = {
        **DONE, "state": "failed", "why": "it took more than 465 s",
        "rows": [{"precision": "fp32", "tokens_per_s": 12345.6, "of_fp32": 1.0, "gap_fp32": 0.0123}],
    }  # fmt: skip
    document = report.merged(report.empty(is_rehearsed=False), "oom", good)
    text = report.markdown(report.merged(document, "lora", failed))
    sections = dict(part.split("\n", 1) for part in text.split("\n## ")[1:])
    assert [*sections] == [part.title for part in PARTS.values()]
    assert (
        "2026-11-25, 61 s, commit abc1234; NVIDIA H100 80GB HBM3, driver 580.65.06, CPUs 16."
        in sections["Out of memory"]
    )
    assert "| the error | cuda-oom \\| x | - | yes |" in sections["Out of memory"]
    assert "**Failed: it took more than 465 s.**" in sections["Rungs of a LoRA"]
    assert "| fp32 | 12,346 | 1.00 x | - | - | - | - | - | 1.23% | - |" in sections["Rungs of a LoRA"]
    assert "Not run: `make gpu PART=full`." in sections["Rungs of a full fine-tune"]
    assert "ehearsal" not in text


def test_a_rehearsal_says_so_at_every_figure_and_is_never_added_to_a_card_s(tmp_path):
    """Its title, each of its sections, and a file of its own."""
    rows = [{"precision": "fp32", "tokens_per_s": 10.0, "peak_gb": NOT_ON_A_CPU}]
    result = {**DONE, "machine": {"CPUs": 2}, "rows": rows}
    document = report.merged(report.empty(is_rehearsed=True), "lora", result)
    text = report.markdown(document)
    assert text.startswith("# A rehearsal on a CPU\n\n**No card was used.**")
    ran = next(line for line in text.splitlines() if "abc1234" in line)
    assert "A rehearsal on a CPU. " in ran
    assert "no card" in ran
    assert "| fp32 | 10 | - | - | not on a CPU |" in text
    path = tmp_path / "GPU.json"
    report.write(document, path)
    assert (tmp_path / "GPU.md").read_text() == text
    assert report.read(path, is_rehearsed=True) == document
    with pytest.raises(ValueError, match="is of a rehearsal"):
        report.read(path, is_rehearsed=False)


# the parts


def test_parts_are_chosen_by_name_and_run_in_the_order_of_the_table():
    """All without a choice."""
    assert chosen(None) == chosen("") == [*PARTS]
    assert chosen("kill, tests") == ["tests", "kill"]
    with pytest.raises(KeyError, match="speed"):
        chosen("tests,speed")


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """Parts that take no time, but for one that hangs; return the file of the results."""
    (tmp_path / "part.py").write_text(PART)
    monkeypatch.setattr(run, "HERE", tmp_path)
    monkeypatch.setattr(run, "FOLDER", tmp_path)
    monkeypatch.setattr(run, "LEAST_S", 0.5)
    monkeypatch.setattr(run, "PART_S", 2.0)
    monkeypatch.setattr(run.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    return tmp_path / "GPU.json"


def test_a_part_that_hangs_is_ended_with_what_it_started_and_costs_no_other(parts, capfd):
    """Its rows so far stay. One whose rows are not as expected, and one that raises an error, have failed too."""
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        assert run.run_all(["oom", "start", "kill", "memory"], parts, is_rehearsed=False) == 1
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    until(lambda: is_gone(int((parts.parent / "pids").read_text())), "the end of what it left")
    found = json.loads(parts.read_text())["parts"]
    assert {name: [row["what"] for row in result["rows"]] for name, result in found.items()} == {
        "oom": ["oom"], "start": ["start"], "kill": ["kill"], "memory": ["memory"],
    }  # fmt: skip
    assert {name: result["why"] for name, result in found.items()} == {
        "oom": "it took more than 2 s",
        "start": None,
        "kill": "1 of 1 rows are not as expected",
        "memory": "exit code 1, ValueError: no memory",
    }
    assert found["oom"]["seconds"] < 2.0 + run.GRACE_S
    assert "make gpu PART=oom,kill,memory" in capfd.readouterr().err
    assert list(parts.parent.glob("launch-gpu-*")) == []


def test_a_part_without_time_is_not_begun_and_its_earlier_result_stays(parts, monkeypatch, capfd):
    """All parts together end in time."""
    report.write(report.merged(report.empty(is_rehearsed=False), "kill", {**DONE, "rows": []}), parts)
    monkeypatch.setattr(run, "TOTAL_S", run.GRACE_S + 2.5)
    assert run.run_all(["oom", "kill"], parts, is_rehearsed=False) == 1
    found = json.loads(parts.read_text())["parts"]
    assert found["kill"] == {**DONE, "rows": []}
    assert found["oom"]["state"] == "failed"
    assert "kill: no time was left" in capfd.readouterr().err


# where it runs


def start(tmp_path, **variables):
    """Run `make gpu`'s program where there is no nvidia-smi."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PART", "REHEARSE", "WHEELS")}
    env = {**kept, "PATH": str(tmp_path), **variables}
    words = [sys.executable, REPOSITORY / "tests" / "gpu" / "run.py"]
    return subprocess.run(words, env=env, capture_output=True, text=True, check=False)


def test_without_a_card_it_says_so_in_one_line(tmp_path):
    """And writes nothing; so does a part that there is not."""
    done = start(tmp_path)
    assert done.returncode == 2
    assert (
        done.stderr
        == "make gpu: there is no NVIDIA card here: REHEARSE=1 make gpu tries the same parts on the CPU\n"
    )
    assert done.stdout == ""
    done = start(tmp_path, PART="speed")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no part 'speed'; there are: tests lora full" in done.stderr


def test_a_card_is_read_from_what_nvidia_smi_prints():
    """A lost card, or an error in place of one, is none."""
    line = "NVIDIA H100 80GB HBM3, 580.65.06, 9.0, 81559\n"
    assert read_card(f"a warning\n{line}") == ("NVIDIA H100 80GB HBM3", "580.65.06", "9.0", 81559)
    for answer in (
        "",
        "No devices were found\n",
        "[GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]\n",
    ):
        assert read_card(answer) is None


def test_what_is_there_is_not_installed_and_what_lacks_is_named():
    """The tests' own Python has all of it."""
    assert lacking(requirements()) == []
    assert {"torch", "pydantic", "pytest"} <= {environment._name(one) for one in requirements()}
    assert python_with(requirements(), None) == sys.executable
    with pytest.raises(UnfitError, match=r"lacks no-such-thing: make gpu WHEELS=FOLDER"):
        python_with(["pydantic>=2", "no-such-thing>=1"], None)
    with pytest.raises(UnfitError, match="is no folder"):
        python_with(["no-such-thing"], "/nowhere")


@pytest.mark.slow(reason="makes an environment, and pip fills it")
def test_an_environment_from_a_folder_of_wheels_sees_what_was_there_before(tmp_path, monkeypatch):
    """Without a network: what is not in the folder is an error in one line."""
    monkeypatch.setattr(environment, "FOLDER", tmp_path)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    make_wheel(wheels, "small", "1.0")
    python = python_with(["pydantic>=2", "small"], str(wheels))
    assert python == str(tmp_path / "venv" / "bin" / "python")
    code = (
        "import importlib.metadata, pydantic; print(importlib.metadata.version('small'), pydantic.__file__)"
    )
    said = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert said[0] == "1.0"
    assert not said[1].startswith(str(tmp_path))
    with pytest.raises(UnfitError, match=r"failed: .*no-such-thing"):
        python_with(["small", "no-such-thing"], str(wheels))


# what a part reads


def test_every_precision_of_a_card_is_tried_and_fp32_is_the_first():
    """Strict fp32 of a card with tf32 is that of an older one."""
    ampere = [way.words for way in ways((8, 0), "full", is_rehearsed=False)]
    assert ampere[0] == ("--profile", "plain", "--precision", "fp32")
    assert [words[-1] for words in ampere] == ["fp32", "bf16", "fp32", "fp16", "fp16-native"]
    turing = ways((7, 5), "lora", is_rehearsed=False)
    assert [way.words for way in turing] == [
        ("--precision", one) for one in ("fp32", "fp16", "fp16", "fp16-native")
    ]
    assert [way.is_born_in_bf16 for way in turing] == [False, False, True, False]
    assert all("--rehearse" in way.words for way in ways((8, 0), "lora", is_rehearsed=True))


def test_the_farthest_distance_of_two_curves_is_a_share_of_the_first_loss():
    """Of the steps that both have; a loss that is not finite is infinitely far."""
    assert distance({1: 4.0, 2: 3.0}, {1: 4.0, 2: 2.0, 3: 1.0}) == 0.25
    assert distance({1: 4.0}, {2: 2.0}) is None
    assert distance({1: 4.0, 2: float("nan")}, {1: 4.0, 2: 2.0}) == float("inf")
    lines = [{"name": "loss", "step": 1, "value": 3.0}, {"name": "mfu", "step": 1, "value": 0.4}]
    assert losses([*lines, {"name": "loss", "step": 1, "value": "nan"}]).keys() == {1}


def test_a_step_s_time_is_the_median_after_the_first_ones(tmp_path):
    """The line that is being written does not count."""
    clocks = [0.0, 9.0, 10.0, 11.0, 13.0]
    path = tmp_path / "ledger"
    lines = [{"kind": "step", "clock": clock, "peak_bytes": 10**9 + round(clock)} for clock in clocks]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"kind": "st')
    ledger = Ledger(read_lines(path))
    assert ledger.step_s(1) == 1.0
    assert ledger.peak_gb == 1.000000013
    assert Ledger([{"kind": "step", "peak_bytes": None}]).peak_gb is None


def test_examples_have_exactly_the_tokens_that_were_asked_for():
    """A token a character: prompt, newline, tags and the end mark among them."""
    for tokens in (64, 512):
        for number in (0, 7, 1234):
            row = _question(number, tokens)
            assert len(f"{row['prompt']}\n<answer>{row['answer']}</answer>") + 1 == tokens
            assert row["answer"] == row["answer"].strip()
            assert len(_text(number, tokens)["text"]) + 1 == tokens


def test_a_skipped_test_has_shown_nothing(tmp_path):
    """In a rehearsal it is one that a CPU cannot do."""
    path = tmp_path / "report.xml"
    path.write_text(
        '<testsuites><testsuite><testcase classname="tests.a.test_b" name="good" time="1.5"/>'
        '<testcase classname="c" name="bad" time="0"><failure message="assert 1&#10;more">x</failure></testcase>'
        '<testcase classname="c" name="none" time="0"><skipped message="no card"/></testcase></testsuite></testsuites>'
    )
    good, bad, none = outcomes(path, is_rehearsed=False)
    assert good == {"what": "`a.test_b::good`", "found": "passed", "seconds": 1.5, "ok": True}
    assert (bad["found"], bad["ok"]) == ("failure: assert 1", False)
    assert (none["found"], none["ok"]) == ("skipped: no card", None)
    assert [*outcomes(path, is_rehearsed=True)][2]["found"] == "not on a CPU: no card"


# with a simulated card


def test_nvidia_smi_is_asked_for_the_card_and_watched(cards):
    """The most that was in use, in GB."""
    cards.put(("l40s", {"memory.used": 1000}))
    assert (card.card_bytes(), card.used_bytes(), card.capability()) == (45372 * 2**20, 1000 * 2**20, (8, 9))
    peaks = []
    cards.loop(0.05)
    with card.watched(peaks):
        cards.change(0, memory_used=3000)
        time.sleep(0.5)
        cards.change(0, memory_used=2000)
        time.sleep(0.2)
    assert peaks == [3000 * 2**20 / 1e9]
    held = cards.hold(0)
    assert card.holders() == {held.pid}


@pytest.mark.slow(reason="five launches")
@pytest.mark.parametrize("name", ["NVIDIA L40S", "NVIDIA Z9"])
def test_on_a_card_its_lease_is_respected_and_what_a_killed_run_left_is_ended(cards, tmp_path, name):
    """The part that needs no CUDA, as it runs on a card; on one that no profile of ours names, too."""
    pytest.importorskip("torch")  # of holds.py
    cards.put(("l40s", {"name": name}))
    with Station(tmp_path, is_rehearsed=False) as station:
        plans = {}
        for words in ((), ("--profile", "plain", "--precision", "fp32")):
            said = station.client.ok(
                "--dry-run", "--json", *words, "--set", "method=full", "--job", "./sft.toml"
            )
            plans[words[:2]] = json.loads(said)["plan"]
        auto, older = plans[()], plans["--profile", "plain"]
        assert auto["profile"]["name"] == ("l40s" if name == "NVIDIA L40S" else "this_card")
        assert auto["ladder"][0]["mode"] == "bf16"
        assert [(rung["mode"], rung["tf32"]) for rung in older["ladder"]] == [("fp32", False)]
        rows = [*taken._leased(station), *taken._leftovers(station)]
    assert [row["ok"] for row in rows] == [True, True, True]
    assert rows[0]["found"] == "exit 3, names the run"


def test_the_scripts_that_train_by_hand_import_nothing_of_ours():
    """Neither the worker nor what is shared by our jobs."""
    for path in (REPOSITORY / "tests" / "gpu" / "scripts").glob("bare_*.py"):
        assert "launcher" not in path.read_text()
        assert "shared" not in path.read_text()
