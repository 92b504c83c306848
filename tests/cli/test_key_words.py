"""What a shell offers after `--set`: the keys of a job, and their values where there is a choice."""

import json
import typing

import pytest
from testbed.entries import know

from launcher.cli.completion.job_keys import ABOUT, RESUMED, TABLES, VALUES
from launcher.cli.completion.key_words import offered_keys
from launcher.errors import LaunchError
from launcher.runs.resume.resumed_plan import check_settings
from launcher.values.host import LOCAL
from launcher.values.job import BatchSize, Data, Job
from launcher.values.slurm_settings import SlurmSettings


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LAUNCH_RUNS", raising=False)
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "own.toml").write_text(
        'name = "own"\ncommand = ["true"]\n[settings]\nrate = 1e-3\nfast = true\n"odd key" = 1\n[variables]\nMODE = "x"\n'
    )
    return tmp_path


def values(word, verb="run", **params):
    return [offer.value for offer in offered_keys(verb, params, word)]


def test_every_key_of_a_job_has_its_line():
    """And no other: a new key of a job gets one in job_keys.py."""
    leaves = set(Job.model_fields) - {"batch", "data", "slurm"}
    leaves |= {f"slurm.{name}" for name in SlurmSettings.model_fields}
    leaves |= {f"batch.{field.serialization_alias or name}" for name, field in BatchSize.model_fields.items()}
    leaves |= {f"data.{name}" for name in Data.model_fields}
    assert {*ABOUT, *TABLES} == leaves
    assert all(about and "\n" not in about for about in ABOUT.values())


def test_a_fixed_choice_is_offered_whole():
    """Each flag and each choice of a job, with all of its values."""
    choices = {}
    for name, field in Job.model_fields.items():
        if field.annotation is bool:
            choices[name] = ("true", "false")
        elif typing.get_origin(field.annotation) is typing.Literal:
            choices[name] = typing.get_args(field.annotation)
        elif field.annotation == bool | typing.Literal["auto"]:
            choices[name] = ("auto", "true", "false")
    assert choices == VALUES
    assert values("guard=") == ["guard=end", "guard=warn"]
    assert values("method=l") == ["method=lora"]
    assert values("steps=") == []


def test_a_resumed_run_is_offered_what_it_takes():
    """It keeps the others, and says so."""

    def takes(key):
        value = VALUES.get(key, ["1"])[0]
        try:
            check_settings([f"{key}={value}"], LOCAL)
        except LaunchError as error:
            return "resumed run" not in str(error) and "unknown key" not in str(error)
        return True

    assert {key for key in ABOUT if takes(key)} == {*RESUMED}
    assert "model=" in values("", "rerun")
    assert "model=" not in values("", "resume")


def test_keys_are_nested_and_say_what_they_are():
    """One line each."""
    assert values("batch.") == ["batch.global=", "batch.micro="]
    [offer] = offered_keys("run", {}, "guard")
    assert offer.help == "end a training that looks sick, or only warn: end, warn"


@pytest.mark.parametrize("named", ["own", "jobs/own.toml"])
def test_the_settings_are_those_of_the_job_that_the_line_names(named):
    """With the value that they have there; what `--set` cannot name is not offered."""
    offers = offered_keys("run", {"job": named}, "settings.")
    assert [tuple(offer)[:2] for offer in offers] == [
        ("settings.rate=", "of the script; 0.001 in own"),
        ("settings.fast=", "of the script; true in own"),
    ]
    assert values("variables.", job=named) == ["variables.MODE="]
    assert values("settings.fast=", job=named) == ["settings.fast=true", "settings.fast=false"]
    assert values("settings.rate=", job=named) == []


def test_without_a_job_on_the_line_they_are_the_project_s_or_ours(project):
    """As the launch would choose."""
    assert "settings.lora_rank=" in values("settings.")
    (project / "launch.toml").write_text('job = "own"\n')
    assert values("settings.") == ["settings.rate=", "settings.fast="]


@pytest.mark.parametrize("verb", ["resume", "rerun"])
def test_for_a_run_they_are_those_of_its_plan(project, verb):
    """It may have been launched from another folder."""
    run = project / "runs" / "261122-own-abcdef"
    run.mkdir(parents=True)
    (run / "plan.json").write_text(json.dumps({"settings": {"depth": 3}}))
    assert values("settings.", verb, run="abcdef") == ["settings.depth="]
    know(run.name, run.parent, order=1)
    assert values("settings.", verb, run="last") == ["settings.depth="]


@pytest.mark.parametrize(
    "content", ["job = 3\n", "job = [", "job = 'nowhere'\n", "\x00", "[" * 5000, "settings = 3"]
)
def test_a_broken_file_takes_only_its_settings(project, content):
    """The keys of every job stay."""
    (project / "launch.toml").write_text(content)
    assert "steps=" in values("")
    (project / "jobs" / "own.toml").write_text(content)
    assert values("settings.", job="own") == ["settings."]
    assert "steps=" in values("", "resume", run="nowhere")
