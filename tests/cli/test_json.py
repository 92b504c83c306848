"""--json: each verb's kind and keys, as the schema has them, in any state of a run."""

import json

import pytest
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from testbed.client import REPOSITORY, until
from testbed.tables import mostly_long

from launcher.cli.json_output import (
    check_shapes,
    comparison_shapes,
    end_shapes,
    file_shapes,
    host_shapes,
    ladder_shapes,
    line_shapes,
    precision_shapes,
    preview_shapes,
    run_shapes,
    verification_shapes,
)

_IN_ORDER = (
    run_shapes,
    host_shapes,
    ladder_shapes,
    verification_shapes,
    check_shapes,
    preview_shapes,
    precision_shapes,
    comparison_shapes,
    file_shapes,
    end_shapes,
    line_shapes,
)
SHAPES = tuple(
    shape
    for module in _IN_ORDER
    for shape in vars(module).values()
    if isinstance(shape, type) and issubclass(shape, BaseModel) and shape.__module__ == module.__name__
    if "kind" in shape.model_fields
    and (shape is line_shapes.EventLine or not shape.model_fields["kind"].is_required())
)
"""Every kind; the last one has the kind of its event."""


def kind_of(shape):
    """The kind of a shape, "" for events."""
    return str(shape.model_fields["kind"].default) if not shape.model_fields["kind"].is_required() else ""


def json_schema():
    """The JSON Schema (2020-12) of everything that --json prints."""
    named, whole = models_json_schema([(shape, "serialization") for shape in SHAPES], by_alias=True)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "launch --json",
        "description": "Any line that `launch … --json` prints is one of these, by its kind.",
        "anyOf": [named[shape, "serialization"] for shape in SHAPES],
        **whole,
    }


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A project with a run that succeeded and one that failed."""
    from testbed.client import Client

    client = Client(tmp_path_factory.mktemp("json"))
    client.script("print({'loss': 1.5, 'epoch': 1}); open('out.txt', 'w').write('kept')\n")
    client.ok("--name", "good", "--", "python", "train.py")
    failing = "print({'loss': 1.5, 'epoch': 1}); open('out.txt', 'w').write('kept'); raise ValueError(3)"
    client.run("--name", "bad", "--", "python", "-c", failing)
    return client


def lines_of(client, *words):
    done = client.run(*words, "--json")
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


VERBS = {
    "ps": "runs",
    "ps --host local": "runs",
    "ps --state waiting": "runs",
    "hosts": "hosts",
    "probe": "probe",
    "doctor": "doctor",
    "doctor local": "doctor",
    "profile list": "profiles",
    "profile show t4": "profile",
    "explain --profile t4": "ladder",
    "explain RUN": "precision",
    "--dry-run": "preview",
    "check": "check",
    "check --fix": "check",
    "check --explain LC101": "rule",
    "image show --profile t4": "image",
    "metrics RUN": "metric",
    "logs RUN": "log",
    "logs RUN -n 1": "log",
    "plot RUN": "plot",
    "compare good bad": "comparison",
    "compare good bad --diff": "comparison",
    "diagnose RUN": "diagnosis",
    "ls RUN": "files",
    "cp --force RUN:out.txt .": "copied",
    "stop RUN": "stopped",
    "gc": "garbage",
    "sweep": "leftovers",
}
EVENTS = ("begin", "state", "checkpoint", "evidence", "host", "precision", "end")
BY_KIND = {kind_of(shape): shape for shape in SHAPES}


def check(line):
    """One line of an answer: the version and the kind come first, and it has the keys of its shape and no others."""
    found = json.loads(line, parse_constant=lambda token: pytest.fail(f"{token} is no JSON"))
    assert [*found][:2] == ["version", "kind"]
    assert found["kind"] in {*BY_KIND, *EVENTS}
    shape = BY_KIND.get(found["kind"], line_shapes.EventLine)
    names = {field.serialization_alias or name for name, field in shape.model_fields.items()}
    assert found.keys() == names, found["kind"]
    plain = {name: found[field.serialization_alias or name] for name, field in shape.model_fields.items()}
    shape.model_validate(plain)
    return found["kind"]


@pytest.mark.parametrize("line", VERBS)
def test_each_object_has_its_kind_and_its_keys(desk, line):
    """Of a run that succeeded and of one that failed alike."""
    for run in ("good", "bad") if "RUN" in line else ("",):
        done = desk.run(*line.replace("RUN", run).split(), "--json")
        assert done.returncode in (0, 1), done.stderr
        assert {check(line_) for line_ in done.stdout.splitlines()} == {VERBS[line]}


def test_removed_runs_and_pulled_files_too(desk):
    """They change what is here: each in a run of its own; `pull` has its stages first."""
    desk.ok("--name", "gone", "--", "python", "train.py")
    assert {check(line) for line in desk.ok("pull", "gone", "--json").splitlines()} == {"stage", "pulled"}
    assert check(desk.ok("rm", "--here", "--force", "gone", "--json")) == "removed"


def test_the_last_line_of_a_log_needs_no_end(desk):
    """Of a log that ends in the middle of a line, in a run that goes on, and from the start or the end."""
    script = "import time; print('first'); print('unfinished', end='', flush=True); time.sleep(600)"
    run = desk.detached("--", "python", "-c", script)
    until(lambda: "unfinished" in desk.run("logs", run).stdout, "what it prints")
    for words in ((), ("-n", "1"), ("--since", "10m")):
        lines = desk.ok("logs", run, *words, "--json").splitlines()
        assert {check(line) for line in lines} == {"log"}
        assert json.loads(lines[-1])["text"] == "unfinished"
    assert check(desk.ok("ps", "--json")) == "runs"
    assert check(desk.ok("stop", "--now", run, "--json")) == "stopped"


def test_hosts_that_do_not_answer_have_the_same_keys(desk):
    """Their facts are null, and the problem is said."""
    desk.script('[hosts.far]\naddress = "x.invalid"\n', "launch.toml")
    line = desk.run("hosts", "--json").stdout
    (desk.project / "launch.toml").unlink()
    assert check(line) == "hosts"
    rows = {row["host"]: row for row in json.loads(line)["hosts"]}
    assert rows["far"].keys() == rows["local"].keys()
    assert rows["far"]["facts"] is None
    assert "x.invalid" in rows["far"]["problem"]


def test_the_schema_is_that_of_the_types(request):
    """docs/json-schema.json, which `pytest --rewrite-cases` writes anew."""
    path = REPOSITORY / "docs" / "json-schema.json"
    text = json.dumps(json_schema(), indent=1, sort_keys=True) + "\n"
    if request.config.getoption("--rewrite-cases"):
        path.write_text(text)
    assert path.read_text() == text


def test_rows_of_runs_have_the_same_keys_in_every_state(desk):
    """What is unknown is null, not missing."""
    rows = lines_of(desk, "ps")[0]["runs"]
    assert {row["state"] for row in rows} >= {"succeeded", "failed"}
    assert len({frozenset(row) for row in rows}) == 1


@mostly_long(
    "words", [("--", "true"), ("--", "false"), ("--name", "again", "--", "python", "train.py")], ci=(2,)
)
def test_each_line_of_a_launch_has_its_shape(desk, words):
    """From the plan to the end, and again for whoever attaches."""
    kinds = [check(line) for line in desk.run("--json", *words).stdout.splitlines()]
    assert kinds[-1] == "end"
    assert {"plan", "cargo", "stage", "state"} <= {*kinds}
    for again in (("attach", "last"), ("rerun", "last")):
        assert [check(line) for line in desk.run(*again, "--json").stdout.splitlines()][-1] == "end"
