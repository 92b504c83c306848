"""--json: each verb's kind and keys, as the docs have them, in any state of a run."""

import json
import re

import pytest
from testbed.client import REPOSITORY


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A project with a run that succeeded and one that failed."""
    from testbed.client import Client

    client = Client(tmp_path_factory.mktemp("json"))
    client.script("print({'loss': 1.5, 'epoch': 1})\n")
    client.ok("--name", "good", "--", "python", "train.py")
    client.run("--name", "bad", "--", "python", "-c", "print({'loss': 1.5, 'epoch': 1}); raise ValueError(3)")
    return client


def lines_of(client, *words):
    done = client.run(*words, "--json")
    assert done.returncode in (0, 1), done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


VERBS = {
    "ps": ("runs", {"runs"}),
    "hosts": ("hosts", {"hosts", "aliases"}),
    "profile list": ("profiles", {"profiles"}),
    "profile show t4": ("profile", {"profile", "can", "ladder"}),
    "explain --profile t4": (
        "ladder",
        {"profile", "method", "model", "ladder", "excluded", "findings", "inject", "takes"},
    ),
    "explain RUN": (
        "precision",
        {
            "run",
            "profile",
            "rehearsed",
            "attempt",
            "wanted",
            "rows",
            "verdict",
            "rung",
            "sentence",
            "next",
            "attempts",
        },
    ),
    "--dry-run": ("preview", {"plan", "digest", "findings", "cargo"}),
    "metrics RUN": (
        "metric",
        {"run", "attempt", "rank", "step", "time", "name", "value", "rehearsed"},
    ),
    "plot RUN": ("plot", {"run", "path"}),
    "diagnose RUN": ("diagnosis", {"class", "line", "line_number", "why", "remedy"}),
    "ls RUN": ("files", {"run", "files", "left_out"}),
    "gc": ("garbage", {"host", "dry_run", "items", "bytes", "unreadable"}),
    "sweep": ("leftovers", {"host", "dry_run", "items"}),
}


@pytest.mark.parametrize("line", VERBS)
def test_each_object_has_its_kind_and_its_keys(desk, line):
    """Of a run that succeeded and of one that failed alike."""
    kind, keys = VERBS[line]
    for run in ("good", "bad") if "RUN" in line else ("",):
        for found in lines_of(desk, *line.replace("RUN", run).split()):
            assert [*found][:2] == ["version", "kind"]
            assert (found["version"], found["kind"]) == (1, kind)
            assert found.keys() == {"version", "kind", *keys}


def test_rows_of_runs_have_the_same_keys_in_every_state(desk):
    """What is unknown is null, not missing."""
    rows = lines_of(desk, "ps")[0]["runs"]
    assert {row["state"] for row in rows} == {"succeeded", "failed"}
    assert len({frozenset(row) for row in rows}) == 1


@pytest.mark.parametrize(
    "words", [("--", "true"), ("--", "false"), ("--name", "again", "--", "python", "train.py")]
)
def test_each_line_of_a_launch_has_version_and_kind(desk, words):
    """From the plan to the end."""
    lines = [json.loads(line) for line in desk.run("--json", *words).stdout.splitlines()]
    assert {tuple(line)[:2] for line in lines} == {("version", "kind")}
    assert lines[-1]["kind"] == "end"


def test_the_docs_have_these_kinds_and_keys():
    """The table of docs/records-and-json.md."""
    page = (REPOSITORY / "docs" / "records-and-json.md").read_text()
    for kind, keys in VERBS.values():
        (row,) = [
            line
            for line in page.splitlines()
            if line.startswith("|") and re.search(rf"`{kind}`[;,]? .*\|", line.split("|")[2] + " |")
        ]
        if kind not in ("garbage", "leftovers", "profiles", "profile"):
            assert keys <= set(re.findall(r"`([a-z_]+)`", row)), kind
