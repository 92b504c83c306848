"""Runs that older versions recorded: today's client and agent list, read, pull, resume and remove them.

The folders below tests/fixtures hold their bytes and say how they were made: runs_of_a27ccd6 those of one host,
runs_of_f148254 those of every place.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from testbed.client import REPOSITORY, Client, until
from testbed.tables import mostly_long

from launcher.copy.index import this_machine

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
    "interrupted": ("interrupted", None, 7),
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


@mostly_long("name", LOGS, ci=(0, 5))
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


@mostly_long("name", ["plain", "failed", "mended", "cancelled", "child"], ci=(0, 2))
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


@mostly_long("name", ["succeeded", "cancelled_now", "mended"], ci=(1,))
def test_attach_leaves_a_recorded_mirror_as_it_was_or_completes_it(recorded, name):
    """The old client's mirror counts: whether it is whole, partial or empty, it is whole afterwards."""
    recorded.run("attach", RUNS[name], "--host", "local")
    expected = recorded_stream(RUNS[name])
    assert sums(recorded.runs / RUNS[name], *expected) == expected


@mostly_long("name", ["succeeded", "mended", "child"], ci=(1,))
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


# The second set: every place, as commit f148254 recorded it.

PLACES = ("local", "ssh", "docker", "slurm", "kaggle", "kaggle_segments", "rental", "moved", "batch")
OF_PLACES = FIXTURE.parent / "runs_of_f148254"
CLUSTER, NOBODY = "10.214.1.11", "127.0.0.9"
"""The address of the recorded cluster, which one of the testbed's may have; and one where nobody listens."""
COUNTED = ("stopped", "child", "mended", "succeeded", "cut")
"""The runs of the training that counts its steps."""
ROW = (
    "state",
    "reason",
    "attempt",
    "step",
    "steps",
    "loss",
    "job",
    "job_id",
    "card",
    "host",
    "parent",
    "batch",
    "rent_cents",
)
"""What `ps --json` says of a run that has ended, whenever and by whichever version it is asked."""


class Recorded(NamedTuple):
    """A client with the home and the project of a recorded place, and what that version said of its runs."""

    client: Client
    hosts: Path
    runs: dict[str, str]
    said: dict[str, dict[str, Any]]

    @property
    def ended(self):
        """The runs that this client knew to have ended, by name."""
        rows = json.loads(self.said["ps --json"]["out"])["runs"]
        over = {row["run"] for row in rows if row["state"] in ("succeeded", "failed", "stopped")}
        return {name: run for name, run in self.runs.items() if run in over}

    def as_local(self, host):
        """Forget what the client has, and let a recorded root be this machine's."""
        home = self.client.home
        for path in (self.client.runs, self.client.index, home / ".launch"):
            shutil.rmtree(path, ignore_errors=True)
        (self.hosts / host).rename(home / ".launch")
        self.here()

    def here(self):
        """Let the root of this machine be the one that was recorded: its id, and the places that its links name."""
        root = self.client.home / ".launch"
        for link in (path for path in root.glob("runs/*/**/*") if path.is_symlink()):
            _, found, rest = str(link.readlink()).partition("/.launch/")
            if found:
                link.unlink()
                link.symlink_to(root / rest)
        place = min(root.glob("hosts/*"), default=None)
        if place is not None:
            self.client.variables["LAUNCH_HOST_ID"] = place.name


@pytest.fixture
def unpacked(client):
    """Unpack the record of a place into a client; its index names this machine and these folders."""

    def unpack(place):
        folder = client.home.parent
        subprocess.run(["tar", "-xf", OF_PLACES / f"{place}.tar.xz"], cwd=folder, check=True)
        told = json.loads((folder / "said.json").read_text())
        data = client.home / ".local" / "share" / "launch"
        for path in (
            *client.project.glob("launch.toml"),
            *data.glob("runs/*/run.json"),
            *data.glob("batches/*.json"),
            *data.glob("rentals/*/tenancy.json"),
        ):
            text = path.read_text().replace(told["folder"], str(folder)).replace(CLUSTER, NOBODY)
            path.write_text(re.sub(r'"before/[0-9a-f]*"', json.dumps(this_machine()), text))
        made = Recorded(client, folder / "hosts", told["runs"], told["said"])
        made.here()
        return made

    return unpack


def test_the_archives_are_small():
    """All of them together."""
    assert {path.name for path in OF_PLACES.glob("*.xz")} == {f"{place}.tar.xz" for place in PLACES}
    assert sum(path.stat().st_size for path in OF_PLACES.iterdir()) < 500_000


@pytest.mark.parametrize(
    "place",
    [
        "local",
        "kaggle",
        "rental",
        *(
            pytest.param(place, marks=pytest.mark.long)
            for place in ("ssh", "docker", "slurm", "kaggle_segments", "moved", "batch")
        ),
    ],
)
def test_what_has_ended_is_listed_and_shown_as_it_was(unpacked, place):
    """`ps --json`, `logs`, `metrics`, `diagnose`, `explain` and `compare`, from what the client has; no host is there any more.

    `ls` asks the host, and this machine is.
    """
    verbs = {"logs", "metrics", "diagnose", "explain", "compare", *(["ls"] if place == "local" else [])}
    recorded = unpacked(place)
    listed = {
        row["run"]: row for row in json.loads(recorded.client.ok("ps", "--json", "--wait", "2s"))["runs"]
    }
    assert listed.keys() >= {*recorded.runs.values()}
    before = {row["run"]: row for row in json.loads(recorded.said["ps --json"]["out"])["runs"]}
    for run in recorded.ended.values():
        assert {key: listed[run][key] for key in ROW} == {key: before[run][key] for key in ROW}
    for words, said in recorded.said.items():
        verb, *more = words.split()
        if verb in verbs and {*more} & {*recorded.ended.values()}:
            done = recorded.client.run(verb, *more)
            assert (done.returncode, _without_time(done.stdout)) == (
                said["code"],
                _without_time(said["out"]),
            ), words


def _without_time(shown):
    """Return an output without the running time: versions before 2026-11-30 also counted the time between attempts."""
    return re.sub(r"^time .*\n", "", shown, flags=re.MULTILINE)


@mostly_long("place", ["local", "ssh", "docker", "kaggle", "moved", "rental"], ci=(0, 3, 4, 5))
def test_an_ended_one_is_attached_again_without_its_host(unpacked, place):
    """What has ended is followed from the copy here, with the exit code of its state."""
    recorded = unpacked(place)
    before = {row["run"]: row["state"] for row in json.loads(recorded.said["ps --json"]["out"])["runs"]}
    name, run = next((name, run) for name, run in recorded.ended.items() if name in ("succeeded", "child"))
    done = recorded.client.run("attach", run)
    assert done.returncode == 0, name + done.stderr
    assert before[run] in done.stderr


@pytest.mark.parametrize(
    ("place", "host"),
    [
        ("ssh", "A"),
        ("docker", "dock"),
        ("slurm", "hive"),
        ("rental", "rented"),
        ("moved", "A"),
        ("batch", "A"),
    ],
)
def test_the_records_of_a_host_are_read_by_a_new_client(unpacked, place, host):
    """Its root is this machine's: it lists them, and a client with nothing of them gets log, steps and files."""
    recorded = unpacked(place)
    on_host = {path.name for path in (recorded.hosts / host / "runs").glob("[0-9]*")}
    recorded.as_local(host)
    listed = rows(recorded.client, "--host", "local")
    assert listed.keys() == on_host
    assert {row["state"] for row in listed.values()} <= {
        "succeeded",
        "failed",
        "stopped",
        "interrupted",
        "running",
    }
    for name in {*COUNTED} & {*recorded.runs}:
        run = recorded.runs[name]
        state, last = ("stopped", 7) if name == "stopped" else ("succeeded", 12)
        if run in on_host:
            assert (listed[run]["state"], listed[run]["step"]) == (state, last), name
            assert recorded.client.ok("logs", run, "--host", "local").startswith("begin at ")
            if state == "succeeded" and place in ("ssh", "docker", "slurm"):
                recorded.client.ok("pull", run)
                assert (
                    recorded.client.runs / run / "artifacts/adapter/weights"
                ).read_bytes() == b"trained" * 10000


def test_what_ended_while_no_client_looked_is_brought_home(unpacked):
    """The copy here ends in its middle, and is continued from where it is."""
    recorded = unpacked("local")
    run = recorded.runs["cut"]
    done = recorded.client.run("attach", run)
    assert (done.returncode, "succeeded" in done.stderr) == (0, True), done.stderr
    told = [json.loads(line) for line in recorded.client.ok("metrics", run, "--json").splitlines()]
    assert [line["step"] for line in told if line["name"] == "loss"] == [*range(1, 13)]


def test_a_stopped_one_is_resumed(unpacked):
    """Its child begins behind the step at which it was stopped."""
    recorded = unpacked("local")
    run = recorded.runs["stopped"]
    recorded.client.ok("resume", run, "--set", "settings.waits_at=0")
    (child,) = {path.name for path in recorded.client.runs.glob("2*")} - {*recorded.runs.values()}
    assert recorded.client.ok("logs", child).startswith("begin at 7 ")
    assert recorded.client.summary(child)["state"] == "succeeded"


def test_one_that_ran_is_recovered(unpacked):
    """Its processes are gone: a new attempt begins behind its last checkpoint, and finds nothing of the Python that its plan names."""
    recorded = unpacked("local")
    run = recorded.runs["running"]
    assert rows(recorded.client, "--host", "local")[run]["state"] == "interrupted"
    recorded.client.ok("recover", run)
    row = until(
        lambda: (row := rows(recorded.client, "--host", "local")[run])["state"] == "failed" and row, "its end"
    )
    assert (row["attempt"], row["reason"], row["step"]) == (2, "command-not-found", 7)


def test_a_rental_that_was_open_is_not_forgotten(unpacked):
    """Whether its machine is still there, only the account says: the run is listed, and what to type is said."""
    recorded = unpacked("rental")
    run = recorded.runs["running"]
    done = recorded.client.run("ps", "--json", "--wait", "2s")
    listed = {row["run"]: row for row in json.loads(done.stdout)["runs"]}
    assert (listed[run]["host"], listed[run]["step"]) == ("rented", 1)
    assert f"no process here ends it: for {run}   launch reconcile" in done.stderr


@pytest.mark.parametrize("place", ["local", "kaggle"])
def test_they_are_removed(unpacked, place):
    """Nothing of them is left, in the index or in the project."""
    recorded = unpacked(place)
    runs = [recorded.runs[name] for name in (*COUNTED, "failed") if name in recorded.ended]
    recorded.client.ok("rm", "--force", "--here", *runs)
    left = {
        path.name for folder in (recorded.client.index, recorded.client.runs) for path in folder.iterdir()
    }
    assert not left & {*runs}


def test_batches_are_read(unpacked):
    """The one that has ended, and the one whose worker was killed."""
    recorded = unpacked("batch")
    for words in ("batch status sweep --json", "batch status cut --json"):
        then, now = (
            [json.loads(line) for line in text.splitlines()]
            for text in (recorded.said[words]["out"], recorded.client.ok(*words.split()))
        )
        keys = ("name", "state", "run", "host") if "sweep" in words else ("name", "run", "host")
        assert [{key: row[key] for key in keys} for row in now] == [
            {key: row[key] for key in keys} for row in then
        ]
