"""Runs that an older version recorded: today's client and agent list, read, pull and remove them.

tests/fixtures/runs_of_a27ccd6 holds their bytes and says how they were made.
"""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from testbed.client import REPOSITORY

pytestmark = pytest.mark.slow(reason="each test starts several clients")

FIXTURE = REPOSITORY / "tests" / "fixtures" / "runs_of_a27ccd6"
RUNS = json.loads((FIXTURE / "runs.json").read_text())
STATES = {
    "succeeded": ("succeeded", "completed", 12),
    "plain": ("succeeded", "exit-only", 1),
    "failed": ("failed", "exit-nonzero", None),
    "mended": ("succeeded", "completed", 12),
    "cancelled": ("stopped", "by-user", 8),
    "cancelled_now": ("stopped", "by-user-now", 7),
    "child": ("succeeded", "completed", 14),
    "interrupted": ("interrupted", None, 5),
}
ENDED = [name for name in RUNS if name != "interrupted"]
LOGS = {
    "succeeded": "begin at 0\n",
    "plain": "a plain script\n{'loss': 0.5, 'epoch': 1.0}\n",
    "failed": "so far\nthe reason\n",
    "cancelled": "begin at 0\n",
    "cancelled_now": "begin at 0\n",
    "child": "begin at 8\n",
    "interrupted": "begin at 0\n",
}


@pytest.fixture
def recorded(client):
    """A client whose home is the recorded host's and whose project holds the recorded mirrors."""
    subprocess.run(["tar", "-xzf", FIXTURE / "runs.tar.gz"], cwd=client.home.parent, check=True)
    for link in host_runs(client).glob(
        "*/data/*"
    ):  # absolute: to the store of the machine that recorded them
        target = str(link.readlink()).replace("/tmp/launch-before", str(client.home.parent), 1)
        link.unlink()
        link.symlink_to(target)
    attempt = host_runs(client) / RUNS["plain"] / "0002" / "attempt.json"
    client.variables["LAUNCH_HOST_ID"] = json.loads(attempt.read_text())["host_id"]
    return client


@pytest.fixture
def attached(recorded):
    """The same client once it has made those runs its own."""
    recorded.ok("attach", "--host", "local", "--all")
    return recorded


def host_runs(client):
    return client.home / ".launch" / "runs"


def sums(folder, *names):
    """The SHA-256 of files below a folder, by sha256sum."""
    done = subprocess.run(
        ["sha256sum", *sorted(names)], cwd=folder, check=True, capture_output=True, text=True
    )
    return {line[66:]: line[:64] for line in done.stdout.splitlines()}


def recorded_sums(prefix):
    """The SHA-256 of the recorded files whose path begins with a prefix, by the rest of the path."""
    lines = (FIXTURE / "SHA256SUMS").read_text().splitlines()
    return {line[66:].removeprefix(prefix): line[:64] for line in lines if line[66:].startswith(prefix)}


def recorded_stream(run):
    """The SHA-256 of what a client mirrors of a run: its plan and its numbered folders' logs, events and records."""
    mirrored = {"attempt.json", "state.json", "events.jsonl", "log.txt", "plan.json"}
    return {
        path: digest
        for path, digest in recorded_sums(f"home/.launch/runs/{run}/").items()
        if Path(path).name in mirrored and (path[0].isdigit() or path == "plan.json")
    }


def rows(client, *words):
    return {row["run"]: row for row in json.loads(client.ok("ps", "--json", *words))["runs"]}


def test_the_archive_holds_what_was_recorded(recorded):
    """Each file has the checksum that was taken when it was recorded."""
    expected = recorded_sums("")
    assert sums(recorded.home.parent, *expected) == expected
    assert (FIXTURE / "runs.tar.gz").stat().st_size < 300_000


def test_the_host_lists_them_with_their_states(recorded):
    """`ps --host` reads state, reason and step of each from the host's records."""
    listed = rows(recorded, "--host", "local")
    assert {
        name: (listed[run]["state"], listed[run]["reason"], listed[run]["step"]) for name, run in RUNS.items()
    } == STATES
    assert "after cuda-oom in attempt 1" in " ".join(recorded.ok("ps", "--host", "local").split())


def test_the_client_lists_them_from_its_mirrors_once_they_are_attached(recorded):
    """Mirrors of that version are not in the index: `ps` names them as foreign, and `attach --all` makes them this user's."""
    before = json.loads(recorded.ok("ps", "--json"))
    assert (before["runs"], before["foreign"]) == ([], sorted(RUNS.values()))
    attached = json.loads(recorded.ok("attach", "--host", "local", "--all", "--json"))
    assert (sorted(attached["runs"]), attached["foreign"]) == (sorted(RUNS.values()), [])
    listed = rows(recorded)
    assert {name: (listed[run]["state"], listed[run]["step"]) for name, run in RUNS.items()} == {
        name: (state, step) for name, (state, _, step) in STATES.items()
    }


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_printed_whole(recorded, name):
    """`logs` prints what the script printed, whether or not the run was mirrored before; `--host` makes it this user's."""
    assert recorded.ok("logs", RUNS[name], "--host", "local") == LOGS[name]
    assert recorded.ok("logs", RUNS[name]) == LOGS[name]


def test_a_log_of_two_attempts_has_both(attached):
    """The log of the mended run begins with the failure and continues with the second attempt."""
    log = attached.ok("logs", RUNS["mended"])
    assert log.startswith("begin at 0\n")
    assert "torch.OutOfMemoryError: CUDA out of memory." in log
    assert log.endswith("begin at 5\n")


def test_metrics_join_the_attempts_and_the_parent(attached):
    """Each step counts once; a resumed run's metrics begin with its parent's."""
    lines = [json.loads(line) for line in attached.ok("metrics", RUNS["mended"], "--json").splitlines()]
    assert [(line["attempt"], line["step"]) for line in lines if line["name"] == "loss"] == [
        *((1, step) for step in range(1, 6)),
        *((2, step) for step in range(6, 13)),
    ]
    lines = [json.loads(line) for line in attached.ok("metrics", RUNS["child"], "--json").splitlines()]
    assert [(line["run"], line["step"], line["value"]) for line in lines if line["name"] == "loss"] == [
        *((RUNS["cancelled"], step, 1 / step) for step in range(1, 9)),
        *((RUNS["child"], step, 1 / step) for step in range(9, 15)),
    ]


@pytest.mark.parametrize("name", ["plain", "failed", "mended", "cancelled", "child"])
def test_attach_fetches_all_of_it_into_an_empty_client_folder(recorded, name):
    """A client without mirrors gets byte for byte what was recorded, and the exit code of the state."""
    shutil.rmtree(recorded.runs)
    done = recorded.run("attach", RUNS[name], "--host", "local")
    state = STATES[name][0]
    assert done.returncode == (0 if state == "succeeded" else 1)
    assert state in done.stderr
    expected = recorded_stream(RUNS[name])
    assert len(expected) >= 7
    assert sums(recorded.runs / RUNS[name], *expected) == expected


@pytest.mark.parametrize("name", ["succeeded", "cancelled_now", "mended"])
def test_attach_leaves_a_recorded_mirror_as_it_was_or_completes_it(recorded, name):
    """The old client's mirror counts: whether it is whole, partial or empty, it is whole afterwards."""
    recorded.run("attach", RUNS[name], "--host", "local")
    expected = recorded_stream(RUNS[name])
    assert sums(recorded.runs / RUNS[name], *expected) == expected


@pytest.mark.parametrize("name", ["succeeded", "mended", "child"])
def test_pull_fetches_the_artifacts(recorded, name):
    """Names with spaces too; each file has the checksum that was recorded, by sha256sum."""
    shutil.rmtree(recorded.runs)
    recorded.ok("pull", RUNS[name], "--host", "local")
    expected = recorded_sums(f"home/.launch/runs/{RUNS[name]}/artifacts/")
    assert set(expected) == {"adapter/weights", "a name with spaces.txt"}
    assert sums(recorded.runs / RUNS[name] / "artifacts", *expected) == expected


def test_rm_and_gc_leave_nothing_of_them(attached):
    """On the host and here; a run with files that are nowhere else needs --force."""
    attached.ok("stop", "--now", RUNS["interrupted"])
    kept = attached.run("rm", RUNS["mended"])
    assert kept.returncode != 0
    assert (host_runs(attached) / RUNS["mended"]).exists()
    attached.ok("pull", "--all", RUNS["succeeded"])
    attached.ok("rm", RUNS["succeeded"])
    assert not (host_runs(attached) / RUNS["succeeded"]).exists()
    expected = recorded_sums(f"home/.launch/runs/{RUNS['succeeded']}/artifacts/")
    assert sums(attached.runs / RUNS["succeeded"] / "artifacts", *expected) == expected
    attached.ok("rm", "--force", "--here", *(RUNS[name] for name in [*ENDED, "interrupted"]))
    attached.ok("gc", "--host", "local")
    assert list(host_runs(attached).iterdir()) == []
    assert list(attached.runs.glob("[0-9]*")) == []
    store = attached.home / ".launch" / "store"
    assert [path for path in store.rglob("*") if path.is_file() and path.name != "lock"] == []
