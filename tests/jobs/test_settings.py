"""The settings of the included jobs: read in the job, and checked by launch before anything is sent."""

import dataclasses
import json
import math
import tomllib
from types import SimpleNamespace

import pytest
from testbed.job_programs import ROOT, load

from launcher.config import included_jobs, job_check, resolve

JOB = SimpleNamespace(steps=200, method="lora", model="org/name", keep_checkpoints=2)
WRONG = {
    "sft": [
        {"lerning_rate": 1e-4},
        {"learning_rate": "abc"},
        {"learning_rate": True},
        {"learning_rate": 0},
        {"learning_rate": math.nan},
        {"packing": "maybe"},
        {"merge": "yes"},
        {"long_rows": "foo"},
        {"loss_on": "x"},
        {"generate": "foo"},
        {"scheduler": "foo"},
        {"merge_dtype": "foo"},
        {"max_length": 0},
        {"lora_rank": 16.5},
        {"eval_share": 2},
        {"chat_template": "./nosuch.jinja"},
        {"chat_template": "mine.jinja"},
        {"logging_steps": 0},
        {"patience": 3},
        {"warmup_steps": 5000},
        {"generate": "text", "eval_share": 0},
        {"eval_steps": 5, "eval_share": 0},
    ],
    "distill": [
        {"temperature": 0},
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"kl_weight": 2},
        {"kl_weight": -0.1},
        {"teacher_dtype": "float61"},
        {"optim": "adafactor"},
        {"eval_steps": 0},
        {"eval_limit": 0},
        {"eval_share": 0},
    ],
}
CASES = [(job, setting) for job, found in WRONG.items() for setting in found]


@pytest.fixture(scope="module")
def settings():
    return load("settings")


def read(settings, job, own, data=None, **more):
    kind = {"sft": settings.Sft, "distill": settings.Distill}[job]
    return settings.read_settings(
        kind, own, SimpleNamespace(**{**vars(JOB), **more}), data or {"train": "./rows.jsonl"}
    )


@pytest.mark.parametrize(("job", "own"), CASES)
def test_a_setting_that_cannot_be_meant_is_named(settings, job, own):
    """A slip does not train silently with a default, nor fail after hours."""
    with pytest.raises(SystemExit, match=next(iter(own))):
        read(settings, job, own)


@pytest.mark.parametrize("name", ["dora", "rslora", "merge"])
def test_what_is_for_an_adapter_is_refused_without_one(settings, name):
    assert getattr(read(settings, "sft", {name: True}), name)
    with pytest.raises(SystemExit, match=f"settings.{name} is for an adapter"):
        read(settings, "sft", {name: True}, method="full")


def test_patience_needs_the_best_checkpoint(settings):
    own = {"patience": 3, "eval_steps": 10}
    assert read(settings, "sft", own).patience == 3
    with pytest.raises(SystemExit, match="keep_checkpoints"):
        read(settings, "sft", own, keep_checkpoints=0)


def test_rows_of_one_s_own_make_evaluations_possible(settings):
    own = {"eval_share": 0, "eval_steps": 5, "generate": "text"}
    assert read(settings, "sft", own, {"train": "./a.jsonl", "eval": "./b.jsonl"}).eval_steps == 5


@pytest.mark.parametrize("template", ["{{ messages }} .jinja", "Qwen/Qwen2.5-0.5B", None])
def test_a_template_is_its_text_or_a_name(settings, template):
    assert read(settings, "sft", {"chat_template": template or "auto"}).chat_template == template


def test_an_automatic_setting_is_the_default_of_the_model(settings):
    """The demo's small model has a rate of its own; a number is used for every model, and a whole one is a number."""
    assert read(settings, "sft", {"learning_rate": "auto"}).learning_rate == 2e-4
    assert read(settings, "sft", {"learning_rate": "auto"}, model="demo").learning_rate == 5e-3
    assert read(settings, "sft", {"learning_rate": 1}, model="demo").learning_rate == 1


@pytest.mark.parametrize("name", ["sft", "distill"])
def test_the_job_file_sets_only_what_the_program_knows(settings, name):
    """The job's file and the program agree, on the values too where the file names one."""
    written = tomllib.loads((ROOT / "jobs" / f"{name}.toml").read_text())["settings"]
    found = read(settings, name, written)
    assert found == type(found)()
    assert set(written) == {field.name for field in dataclasses.fields(found)}


# ---- before anything is sent


@pytest.fixture
def check(tmp_path, monkeypatch):
    """Return a function that yields the findings of a job by their code."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')

    def found(job, *changes):
        task = resolve.task(job, (), changes, None)
        return {one.code: one for one in job_check.findings(task)}

    return found


@pytest.mark.parametrize(("job", "own"), [case for case in CASES if "lerning_rate" not in case[1]])
def test_it_is_refused_before_anything_is_sent(check, job, own):
    data = ("model=./rows.jsonl", "data.train=./rows.jsonl")
    found = check(job, *data, *(f"settings.{name}={json.dumps(value)}" for name, value in own.items()))
    assert found["wrong-setting"].level == "refuse"
    assert next(iter(own)) in found["wrong-setting"].message
    assert "wrong-setting" not in check(job, *data)


def test_a_setting_of_trials_is_checked_too(check):
    assert "wrong-setting" in check("sft", "verify.logging_steps=0")
    assert check("sft") == check("distill") == {}


@pytest.mark.parametrize("job", ["sft", "distill"])
def test_a_model_of_one_s_own_is_not_trained_on_the_demo_unless_named(check, job):
    found = check(job, "model=org/name")["demo-data"]
    assert (found.level, "data.train=./rows.jsonl" in found.mend) == ("refuse", True)
    assert check(job, "model=org/name", "data.train=demo") == {}
    assert list(check(job, "model=org/name", "data.train=./rows.jsonl")) == ["rows"]


@pytest.mark.parametrize("job", ["sft", "distill"])
@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.jsonl", "{", "line 1: not JSON"),
        ("a.jsonl.gz", "x", "not one of .jsonl"),
        ("folder/a.jsonl", "{}", "line 1: its keys are none; the forms are messages"),
        ("folder/a.txt", "x", "a.txt: not one of"),
    ],
)
def test_wrong_data_is_refused_before_anything_is_sent(check, tmp_path, job, name, text, said):
    """Of both jobs, a file of any kind, and in a folder."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    found = check(job, "model=org/name", f"data.train=./{name.partition('/')[0]}")["wrong-row"]
    assert said in found.message
    assert found.level == "refuse"


def test_the_rows_that_were_read_here_are_said(check, tmp_path):
    """Parquet is left to the host, and only a part of many rows is read."""
    rows = tmp_path / "rows"
    rows.mkdir()
    line = (tmp_path / "rows.jsonl").read_text()
    (rows / "a.jsonl").write_text(line * 3)
    assert check("sft", "data.train=./rows")["rows"].message == "data.train: 3 rows of prompt and completion"
    (rows / "b.parquet").write_text("")
    said = "data.train: at least 3 rows of prompt and completion; the rest is checked on the host"
    assert check("sft", "data.train=./rows")["rows"].message == said
    (rows / "a.jsonl").write_text(line * (included_jobs.MOST_ROWS + 1))
    assert "at least 20000 rows" in check("sft", "data.train=./rows")["rows"].message


def test_rows_are_read_once_until_their_file_changes(check, tmp_path, monkeypatch):
    """All items of a batch have the same data."""
    reads, reader = [], included_jobs._read_rows
    monkeypatch.setattr(included_jobs, "_read_rows", lambda *words: reads.append(words) or reader(*words))
    found = [check("sft", "data.train=./rows.jsonl", f"seed={seed}") for seed in range(3)]
    assert (len(reads), found) == (1, [found[0]] * 3)
    (tmp_path / "rows.jsonl").write_text("{}")
    assert "wrong-row" in check("sft", "data.train=./rows.jsonl")


@pytest.mark.parametrize(
    ("changes", "steps"), [((), 200), (("settings.epochs=3",), None), (("settings.epochs=3", "steps=9"), 9)]
)
def test_passes_leave_out_the_steps_of_the_job(changes, steps):
    assert resolve.task("sft", (), changes, None).job.steps == steps
