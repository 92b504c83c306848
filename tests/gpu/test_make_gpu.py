"""`make gpu` itself: what it does with parts that fail, hang or have no time, and that a rehearsal never passes for a card."""

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import version
from types import SimpleNamespace

import pytest
from gpu import card, environment, overhead, report, run, taken, trainings
from gpu.card import read_card
from gpu.environment import UnfitError, lacking, python_with, requirements
from gpu.ledger import Ledger, distance, losses, read_ledger
from gpu.marked_tests import outcomes
from gpu.materials import ON_A_CARD, ON_A_CPU, WITHOUT_BF16, _question, _text
from gpu.parts import NOT_ON_A_CPU, PARTS, chosen
from gpu.station import FailedTrainingError, Station, Trained, how_ended, settings_by_hand
from gpu.trainings import ways
from testbed.client import REPOSITORY, is_gone, processes_of, until
from testbed.profiles import profile
from testbed.wheels import make_wheel

from launcher.planning.assembly import plan as planned
from launcher.values.host import Host
from launcher.values.job import Job

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
    if name in ("oom", "taken"):
        left = [sys.executable, "-c", "import time; time.sleep(1000)"]
        pid = subprocess.Popen(left, start_new_session=True).pid
        open(os.environ["PIDS"], "w").write(str(pid))
        file.write('{"row": ')
        file.flush()
        if name == "taken":
            os.kill(os.getpid(), 9)
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
        "rows": [{"what": "fp32", "precision": "fp32", "tokens_per_s": 12345.6, "of_fp32": 1.0, "gap_fp32": 0.0123}],
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
    assert (
        "| fp32 | fp32 | - | 12,346 | 1.00 x | - | - | - | - | - | 1.230% | - |"
        in sections["Rungs of a LoRA"]
    )
    assert "Not run: `make gpu PART=full`." in sections["Rungs of a full fine-tune"]
    assert "| `lora` | failed: it took more than 465 s | 61 |\n| `full` | not run | - |" in text
    assert "| `oom` | done | 61 |" in text
    assert "ehearsal" not in text
    early = report.markdown(report.merged(document, "lora", {**failed, "machine": {}, "rows": []}))
    assert "abc1234; an unknown machine." in early
    assert "no card" not in early


def test_a_rehearsal_says_so_at_every_figure_and_is_never_added_to_a_card_s(tmp_path):
    """Its title, each of its sections, and a file of its own."""
    rows = [{"what": "fp32", "precision": "fp32", "tokens_per_s": 10.0, "peak_gb": NOT_ON_A_CPU}]
    result = {**DONE, "machine": {"CPUs": 2}, "rows": rows}
    document = report.merged(report.empty(is_rehearsed=True), "lora", result)
    text = report.markdown(document)
    assert text.startswith("# A rehearsal on a CPU\n\n**No card was used.**")
    ran = next(line for line in text.splitlines() if "abc1234" in line)
    assert "A rehearsal on a CPU. " in ran
    assert "no card" in ran
    assert "| fp32 | fp32 | - | 10 | - | - | not on a CPU |" in text
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
    monkeypatch.setattr(run, "MIN_S", 0.5)
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


def test_what_a_killed_part_has_started_is_ended_too(parts):
    """Its folder is in the variables of all its processes. The result names the signal."""
    assert run.run_all(["taken"], parts, is_rehearsed=False) == 1
    assert is_gone(int((parts.parent / "pids").read_text()))
    found = json.loads(parts.read_text())["parts"]["taken"]
    assert (found["why"], found["rows"]) == ("it was ended by SIGKILL", [{"what": "taken", "ok": True}])


@pytest.mark.long
@pytest.mark.slow(reason="begins a rehearsal")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_make_gpu_that_is_stopped_ends_its_part_and_keeps_what_was_there(tmp_path, number):
    """Ctrl-C, `kill`, and a lost connection. Nothing of it is left, and no earlier result is touched."""
    kept = tmp_path / "REHEARSAL.json"
    report.write(report.merged(report.empty(is_rehearsed=True), "oom", {**DONE, "rows": []}), kept)
    before = kept.read_bytes()
    code = "import sys; from pathlib import Path; from gpu import run; run.FOLDER = Path(sys.argv[1]); run.main()"
    path = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests")])
    env = {**os.environ, "PYTHONPATH": path, "REHEARSE": "1", "PART": "oom", "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-c", code, str(tmp_path)]
    process = subprocess.Popen(words, env=env, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    until(lambda: list(tmp_path.glob("launch-gpu-oom-*/rows.jsonl")), "the part")
    (folder,) = tmp_path.glob("launch-gpu-oom-*")
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    assert said == "oom: stopped; what it had before stays\n"
    assert processes_of(folder) == []
    assert not folder.exists()
    assert kept.read_bytes() == before


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
    assert done.stderr == (
        "make gpu: there is no nvidia-smi here, so no NVIDIA card: REHEARSE=1 make gpu tries the same parts on the CPU\n"
    )
    assert done.stdout == ""
    done = start(tmp_path, PART="speed")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no part 'speed'; there are: tests lora full" in done.stderr


def test_a_driver_that_fails_is_quoted(cards):
    """In place of a claim that there is no card."""
    cards.put("l40s")
    assert card.find_card() == ("NVIDIA L40S", "580.65.06", (8, 9), 45372, "Default")
    cards.fail("gpu", "nvml")
    with pytest.raises(UnfitError, match=r"reports no card, but says: Failed to initialize NVML"):
        card.find_card()


def test_a_card_is_read_from_what_nvidia_smi_prints():
    """A lost card, or an error in place of one, is none."""
    line = "NVIDIA H100 80GB HBM3, 580.65.06, 9.0, 81559, Exclusive_Process\n"
    found = read_card(f"a warning\n{line}")
    assert found == ("NVIDIA H100 80GB HBM3", "580.65.06", (9, 0), 81559, "Exclusive_Process")
    assert (found.is_exclusive, found.has_bf16) == (True, True)
    assert not read_card("NVIDIA TITAN RTX, 580.65.06, 7.5, 24576, Default\n").has_bf16
    for answer in (
        "",
        "No devices were found\n",
        ", ".join(["[GPU is lost]"] * 5),
    ):
        assert read_card(answer) is None


def test_what_is_there_is_not_installed_and_what_lacks_is_named():
    """The tests' own Python has all of it. A version that is too old lacks."""
    assert lacking(requirements()) == []
    assert {"torch", "pydantic", "pytest"} <= {environment._name(one) for one in requirements()}
    assert python_with(requirements(), None) == sys.executable
    assert lacking([f"torch=={version('torch')}", "torch>=99", "no-such-thing>=1"]) == [
        "torch>=99", "no-such-thing>=1",
    ]  # fmt: skip
    with pytest.raises(UnfitError, match=r"lacks torch>=99: make gpu WHEELS=FOLDER"):
        python_with(["pydantic>=2", "torch>=99"], None)
    with pytest.raises(UnfitError, match="is not a folder"):
        python_with(["no-such-thing"], "/nowhere")


@pytest.mark.long
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
    with pytest.raises(UnfitError, match=r"pip could not install from .*: .*no-such-thing"):
        python_with(["small", "no-such-thing"], str(wheels))


# what a part reads


def test_every_precision_of_a_card_is_tried_and_fp32_is_the_first():
    """Strict fp32 of a card with tf32 is that of an older one."""
    ampere = ways("full", has_bf16=True, is_rehearsed=False)
    assert ampere[0].words == ("--profile", "plain", "--precision", "fp32")
    assert [way.words[-1] for way in ampere] == ["fp32", "bf16", "fp32", "fp16"]
    turing = ways("lora", has_bf16=False, is_rehearsed=False)
    assert [way.words for way in turing] == [("--precision", mode) for mode in ("fp32", "fp16", "fp16")]
    assert [way.is_born_in_bf16 for way in turing] == [False, False, True]
    assert all("--rehearse" in way.words for way in ways("lora", has_bf16=True, is_rehearsed=True))


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
    ledger = read_ledger(path)
    assert ledger.step_s(1) == 1.0
    assert ledger.peak_gb == 1.000000013
    assert Ledger([{"kind": "step", "peak_bytes": None}]).peak_gb is None


SCALED = """
import torch
weight = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.AdamW([weight], fused=not IS_SCALED)
scaler = torch.amp.GradScaler("cpu", enabled=IS_SCALED)
for factor in (1.0, float("inf"), 1.0):
    scaler.scale(weight.sum() * factor).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
"""


@pytest.mark.long
@pytest.mark.slow(reason="loads torch")
@pytest.mark.parametrize("is_scaled", [True, False])
def test_a_step_that_a_scaler_skips_is_a_step(tmp_path, is_scaled):
    """The first steps of fp16 often are, and a run is held after a number of steps. The optimizer is named."""
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(SCALED.replace("IS_SCALED", str(is_scaled)))
    path = tmp_path / "ledger"
    env = {**os.environ, "WITNESS": str(path)}
    words = [sys.executable, REPOSITORY / "tests" / "gpu" / "scripts" / "witness.py", "train.py"]
    began = time.time()
    subprocess.run(words, cwd=tmp_path, env=env, check=True)
    ledger = read_ledger(path)
    name = "AdamW" if is_scaled else "AdamW, fused"
    assert [line["optimizer"] for line in ledger.steps] == [name, None if is_scaled else name, name]
    assert ledger.optimizer == name
    assert [line["kind"] for line in ledger.lines] == ["start", *3 * ["step"]]
    assert began < ledger.lines[0]["time"] < ledger.steps[0]["time"] - 0.2, (
        "torch is loaded after the first line"
    )


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


# trainings that fail


class Trains:
    """A station whose trainings take no time; those that `fails` names do not succeed."""

    is_rehearsed, has_bf16, sizes = True, True, ON_A_CPU

    def __init__(self, folder, plan, *fails, bare_optimizer="AdamW"):
        self.folder, self.plan, self.fails, self.bare_optimizer = folder, plan, fails, bare_optimizer

    def model(self, name, *_):
        """An empty folder."""
        (self.folder / name).mkdir()
        (self.folder / name / "config.json").write_text("{}")
        return self.folder / name

    def rows(self, *_, **__):
        """Files that nobody reads."""
        return self.folder / "rows", self.folder / "drawn"

    def planned(self, *_):
        """The one plan."""
        return self.plan

    def launched(self, _job, sets, words=()):
        """A training of a method in a precision."""
        return self._trained(f"{sets['method']} {' '.join(words)}".strip(), "AdamW")

    def stopped(self, _job, sets, _steps):
        """A training of a method."""
        return self._trained(sets["method"], "AdamW")

    def bare(self, script, *_, is_plain=False):
        """A training by hand."""
        return self._trained("plain" if is_plain else script, self.bare_optimizer)

    def on_a_card_only(self, value):
        """The figure, as on a card."""
        return value

    def _trained(self, name, optimizer):
        if name in self.fails:
            raise FailedTrainingError(f"failed: cuda-oom in {name}")
        steps = [
            {"kind": "step", "clock": float(n), "peak_bytes": None, "optimizer": optimizer} for n in range(4)
        ]
        return Trained(self.plan, Ledger(steps), {1: 4.0}, 0.0, None)


@pytest.fixture
def plan():
    """The plan of a LoRA on a CPU."""
    job = Job(name="sft", command=("python",), settings={"max_length": 64})
    return planned(profile("cpu"), Host(name="here"), job)


def test_a_large_training_that_does_not_fit_costs_no_other(tmp_path, plan):
    """Its row says why. transformers' defaults are measured also where ours do not fit."""
    rows = [*trainings.billion(Trains(tmp_path, plan, "full"))]
    assert [row["what"] for row in rows] == ["sft, lora", "sft, full", "full, transformers' defaults"]
    assert (rows[1]["precision"], rows[1]["ok"]) == ("failed: cuda-oom in full", False)
    assert rows[0]["of_bare"] == 1.0
    assert (rows[2]["precision"], rows[2]["estimated_gb"], "of_bare" in rows[2]) == ("plain", None, False)
    assert rows[2]["tokens_per_s"] == 8 * 64


def test_a_job_that_fails_costs_no_other_and_another_optimizer_is_no_equal(tmp_path, plan):
    """A bare script has the plan's settings, its form of AdamW among them."""
    rows = [*trainings.jobs(Trains(tmp_path, plan, "full", bare_optimizer="AdamW, fused"))]
    assert [row["ok"] for row in rows] == [False, False, False]
    assert rows[0]["optimizer"] == "AdamW; bare: AdamW, fused"
    assert rows[1]["precision"] == rows[2]["precision"] == "failed: cuda-oom in full"


def test_a_precision_that_fails_costs_no_other(tmp_path, plan):
    """The figures of the rest are there."""
    rehearsed = "full --profile a100_80gb --rehearse --precision"
    rows = [*trainings.full(Trains(tmp_path, plan, f"{rehearsed} fp16"))]
    by_name = {row["what"].strip("`").split()[-1]: row for row in rows[2:]}
    assert {name: row.get("ok", "a figure") for name, row in by_name.items()} == {
        "bf16": "a figure", "fp32": "a figure", "fp16": False,
    }  # fmt: skip
    assert rows[1]["what"] == "transformers' defaults"
    assert rows[1]["estimated_gb"] is None


def test_memory_of_bf16_is_measured_only_where_a_card_has_it_and_a_failure_costs_no_other(monkeypatch):
    """An older card emulates bf16, without the kernels that the estimate knows."""

    def measured(numbers, *, is_on_card):
        assert is_on_card
        if numbers == [3]:
            raise subprocess.CalledProcessError(1, "memory.py")
        return [overhead.memory_bench.Memory(100.0, 100.0)]

    monkeypatch.setattr(overhead.memory_bench, "measured", measured)
    titan = [*overhead.memory(SimpleNamespace(is_rehearsed=False, has_bf16=False))]
    newer = [*overhead.memory(SimpleNamespace(is_rehearsed=False, has_bf16=True))]
    assert len(newer) == len(overhead.memory_bench.ON_A_CARD)
    assert {row["precision"] for row in newer} - {row["precision"] for row in titan} == {
        "bf16, fp32 base", "bf16, bf16 base", "bf16-weights",
    }  # fmt: skip
    failed = [row for row in newer if row.get("ok") is False]
    assert [(row["precision"], row["measured_mb"]) for row in failed] == [
        ("fp16-native", "failed, see the log")
    ]


def test_how_a_training_ended_names_the_class_and_its_line():
    """Or the reason, where nothing is known of a failure."""
    line = "torch.OutOfMemoryError: CUDA out of memory."
    record = {
        "state": "failed",
        "reason": "attempts-exhausted",
        "evidence": {"class": "cuda-oom", "line": line},
    }
    assert how_ended(record) == f"failed: cuda-oom: {line}"
    assert how_ended({"state": "stopped", "reason": "user", "evidence": None}) == "stopped: user"


@pytest.mark.training
@pytest.mark.long
@pytest.mark.parametrize("job", ["sft", "distill"])
def test_a_bare_script_trains_with_the_optimizer_of_the_plan(tmp_path, job):
    """A card's fp32 has torch's fused AdamW. Each step has its loss, and the witness its memory and time."""
    pytest.importorskip("torch")
    with Station(tmp_path, is_rehearsed=True) as station:
        sizes, is_text = station.sizes, job == "distill"
        model = station.model("small", sizes.small)
        rows, drawn = station.rows(2 * sizes.examples, sizes.tokens, is_text=is_text)
        sets = {**trainings._small_sets(station, model, "full", rows), "steps": 2}
        if is_text:
            sets |= {"teacher": f"host:{model}", "data.eval": f"host:{rows}"}
        plan = station.planned(job, sets)
        precision = plan.ladder[0].model_copy(update={"device": "cuda", "capability": "7.5"})
        bare = station.bare(f"bare_{job}.py", plan.model_copy(update={"ladder": (precision,)}), drawn)
    assert bare.ledger.optimizer == "AdamW, fused"
    assert [*bare.losses] == [1, 2]
    assert len(bare.ledger.steps) == 2


# with a simulated card


def test_nvidia_smi_is_asked_for_the_card_and_watched(cards):
    """The most that was in use, in GB; nothing where it reports none."""
    cards.put(("l40s", {"memory.used": 1000}))
    assert (card.used_bytes(), card.free_bytes()) == (1000 * card.MIB, 44372 * card.MIB)
    peaks = []
    cards.loop(0.05)
    with card.watched(peaks):
        for used in (3000, 2000):
            cards.change(0, memory_used=used)
            until(lambda used=used: any(str(used) in str(one["lines"]) for one in cards.reported()), "a look")
    assert peaks == [3000 * 2**20 / 1e9]
    held = cards.hold(0)
    assert card.holders() == {held.pid}
    cards.fail("gpu", "nvml")
    with card.watched(peaks):
        time.sleep(0.2)
    assert len(peaks) == 1


@pytest.mark.long
@pytest.mark.slow(reason="four launches")
def test_an_exclusive_card_that_is_held_is_refused_and_an_older_one_gets_smaller_models(cards, tmp_path):
    """By the pid of its holder, which is left alone."""
    cards.put(("titan_rtx", {"compute_mode": "Exclusive_Process"}))
    with Station(tmp_path, is_rehearsed=False) as station:
        assert station.sizes == WITHOUT_BF16 != ON_A_CARD
        held = cards.hold(0)
        seen, refused = taken._seen(station, held.pid), taken._refused(station, held.pid)
        assert (seen["found"], seen["ok"]) == ("names its pid", True)
        assert (refused["found"], refused["ok"]) == ("exit 3, names its pid", True)
        held.kill()
        held.wait()
        assert taken._refused(station, held.pid)["ok"] is False


@pytest.mark.long
@pytest.mark.slow(reason="five launches")
@pytest.mark.parametrize("name", ["NVIDIA L40S", "NVIDIA Z9"])
def test_on_a_card_its_lease_is_respected_and_what_a_killed_run_left_is_ended(cards, tmp_path, name):
    """The part that needs no CUDA, as it runs on a card; on one that no profile of ours names, too."""
    pytest.importorskip("torch")  # of holds.py
    cards.put(("l40s", {"name": name}))
    with Station(tmp_path, is_rehearsed=False) as station:
        plans = {}
        for words in ((), ("--profile", "plain", "--precision", "fp32")):
            said = station.client.planned("--json", *words, "--set", "method=full", "--job", "./sft.toml")
            plans[words[:2]] = json.loads(said)["plan"]
        auto, older = plans[()], plans["--profile", "plain"]
        assert auto["profile"]["name"] == ("l40s" if name == "NVIDIA L40S" else "this_card")
        assert auto["ladder"][0]["mode"] == "bf16"
        assert [(rung["mode"], rung["tf32"]) for rung in older["ladder"]] == [("fp32", False)]
        model = {"model": f"host:{tmp_path}", "settings.learning_rate": 1e-3}
        by_hand = settings_by_hand(station.planned("sft", model), tmp_path, is_plain=False)
        assert (by_hand["precision"]["mode"], by_hand["is_fused"]) == ("bf16", True)
        rows = [*taken._leased(station), *taken._leftovers(station)]
    assert [row["ok"] for row in rows] == [True, True, True]
    assert rows[0]["found"] == "exit 3, names the run"


def test_the_scripts_that_train_by_hand_import_nothing_of_ours():
    """Neither the worker nor what is shared by our jobs."""
    for path in (REPOSITORY / "tests" / "gpu" / "scripts").glob("bare_*.py"):
        assert "launcher" not in path.read_text()
        assert "shared" not in path.read_text()
