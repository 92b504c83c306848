"""`launch rerun`: what a run was launched with is launched again. Witness: a ledger outside the runs, which each script writes."""

import json

import pytest

from launcher.copy.local_copy import LocalCopy
from launcher.runs.rerunning import differences
from launcher.values.plan import Submission

SCRIPT = """
import json, os, sys
import launcher_worker as worker
knobs = worker.knobs()
told = [sys.argv[1:], os.environ.get("COLOUR"), os.environ.get("TOKEN", "")[:3], knobs.steps, knobs.seed, VERSION]
with open(os.environ["LEDGER"], "a") as ledger:
    print(json.dumps(told), file=ledger)
worker.done(knobs.steps)
"""
JOB = """
name = "told"
command = ["python", "train.py", "--rate", "1e-3"]
steps = 10
[batch]
global = 8
"""


@pytest.fixture
def told(client):
    """A project whose script notes in a ledger what it was given; returns its launches as the ledger has them."""
    ledger = client.home / "ledger"
    client.script(SCRIPT.replace("VERSION", "1"))
    client.script(JOB, "told.toml")
    client.script(f"LEDGER={ledger}\n", "place.env")
    return lambda: [json.loads(line) for line in ledger.read_text().splitlines()]


FIRST = ("--host", "local", "--job", "told.toml", "--env", "COLOUR=red", "--env-file", "place.env")


def ids(client):
    """The runs at home, oldest first."""
    return sorted(
        (path.name for path in client.runs.iterdir() if path.name[0].isdigit()),
        key=lambda run: json.loads((client.runs / run / "0001" / "attempt.json").read_text())["time"],
    )


def test_all_that_was_asked_for_is_asked_again_with_the_code_of_now(client, told):
    """Command, options, variables and job are the same; the run is another one, and its plan is too, but for the code.

    Detached it prints the new run's id alone, as a launch does.
    """
    client.ok(*FIRST, "--set", "seed=5")
    client.script(SCRIPT.replace("VERSION", "2"))
    done = client.run("rerun", "--detach", "last")
    assert done.stdout.split() == [done.stdout.strip()]
    client.ok("attach", done.stdout.strip())
    assert told() == [[["--rate", "1e-3"], "red", "", 10, 5, version] for version in (1, 2)]
    first, second = ids(client)
    assert second == done.stdout.strip()
    plans = [json.loads((client.runs / run / "plan.json").read_text()) for run in (first, second)]
    differing = {key for key in plans[0] if plans[0][key] != plans[1][key]}
    assert differing <= {"code"}
    assert "differs from" not in done.stderr


def test_what_is_changed_is_said_and_the_rest_stays(client, told):
    """A change is remembered too: a rerun of the rerun has it."""
    client.ok(*FIRST)
    (first,) = ids(client)
    said = client.seen("rerun", first, "--set", "steps=20", "--set", "seed=7")
    assert f"differs from {first.rpartition('-')[2]}: steps 10 → 20, seed 0 → 7" in said
    client.ok("rerun", "last", "--set", "steps=30")
    assert [row[3:5] for row in told()] == [[10, 0], [20, 7], [30, 7]]
    assert {row[1] for row in told()} == {"red"}


def test_a_secret_is_asked_for_again_and_never_kept(client, told):
    """Its name alone is on record; without it in the shell there is no second run."""
    client.variables["TOKEN"] = "sesame-open-9431"
    client.ok(*FIRST, "--secret", "TOKEN")
    kept = b"".join(path.read_bytes() for path in client.runs.rglob("*") if path.is_file())
    assert b"sesame-open" not in kept
    client.variables["TOKEN"] = "other-word-2718"
    client.ok("rerun", "last")
    assert [row[2] for row in told()] == ["ses", "oth"]
    del client.variables["TOKEN"]
    refused = client.run("rerun", "last")
    assert refused.returncode == 2
    assert "TOKEN" in refused.stderr
    assert len(ids(client)) == 2


def test_from_another_folder_the_right_command_is_shown_and_nothing_begins(client, told):
    """The files that a run was made of are in the folder that it was launched in."""
    client.ok(*FIRST)
    (run,) = ids(client)
    begun, client.project = client.project, client.home
    client.variables["LAUNCH_RUNS"] = str(begun / "runs")
    refused = client.run("rerun", run)
    assert refused.returncode == 2
    assert f"cd {begun} && launch rerun {run.rpartition('-')[2]}" in refused.stderr
    assert len(told()) == 1


def test_a_run_without_a_record_of_its_request_offers_what_works(client, told):
    """One that another client launched, or an older version: its last checkpoint, or a launch."""
    client.ok(*FIRST)
    (run,) = ids(client)
    for wrong in (None, "{}", "[", json.dumps({"folder": "/x", "request": {"settings": 3}})):
        path = client.index / run / "request.json"
        path.unlink() if wrong is None else path.write_text(wrong)
        refused = client.run("rerun", run)
        assert refused.returncode == 2
        assert f"launch resume {run.rpartition('-')[2]}" in refused.stderr
    assert len(told()) == 1


def test_long_values_and_many_differences_are_cut(client, told):
    """Eight of them, each at most 40 characters, and how many are left."""
    client.ok(*FIRST)
    (run,) = ids(client)
    plan = LocalCopy(run, client.runs).whole_plan()
    settings = {f"key_{number}": "x" * 99 for number in range(10)}
    found = differences(plan, plan.model_copy(update={"settings": settings, "steps": 11}))
    assert len(found) == 9
    assert found[:2] == ["steps 10 → 11", f"settings.key_0 - → {'x' * 39}…"]
    assert found[-1] == "and 3 more"


def test_of_long_values_only_the_part_that_differs_is_shown(client, told):
    """The flags of a cluster are many: the changed one is not the first. Paths begin alike."""
    client.ok(*FIRST)
    (run,) = ids(client)
    plan = LocalCopy(run, client.runs).whole_plan()
    flags = ["--partition=batch", "--time=10", "--nodes=1", "--gres=gpu:a100:1"]
    first, second = (
        plan.model_copy(update={"slurm": Submission(flags=(*flags, more))}) for more in ("--qos=a", "--qos=b")
    )
    assert differences(first, second) == ["slurm.flags --qos=a → --qos=b"]
    paths = [plan.model_copy(update={"settings": {"data": f"/{'long/' * 20}{end}"}}) for end in ("a", "b")]
    (shown,) = differences(*paths)
    assert [one[-1] for one in shown.split(" → ")] == ["a", "b"]
    assert len(shown) < 90
