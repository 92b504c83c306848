"""A move: a run is stopped on one host and goes on at another, exactly once, whatever dies meanwhile."""

import hashlib
import json
import os
import random
import shutil

import pytest
from testbed.client import until
from testbed.two_hosts import STEPS, killed_after, two_hosts

pytestmark = pytest.mark.slow(reason="each test starts several clients")

MOVES = int(os.environ.get("LAUNCH_MOVES", "1"))
"""How often the client is killed after each stage; `make moves` asks for twenty."""


@pytest.fixture
def two(client, ssh_host):
    """An SSH host `A` with another user, and this machine; and a job with data."""
    with two_hosts(client, ssh_host) as made:
        yield made


def test_a_run_moves_in_mid_flight_and_ends_with_the_weights_of_an_unbroken_one(two):
    """Code, data and checkpoint are byte for byte the same; its parent is on record, and the curve is one."""
    client = two.client
    run = two.started(later=2.0)
    (client.project / "train.py").write_text(
        "raise SystemExit('not what was sent')"
    )  # the host's copy travels
    (client.project / "numbers.txt").unlink()
    out = client.ok("recover", run, "--host", "local")
    ((child, _),) = two.runs_on("local").items()
    assert child in out
    assert "from step" in out
    assert two.runs_on("A") == {run: "stopped"}
    for words in (["resume", run], ["recover", run], ["recover", run, "--host", "A"]):
        again = client.run(*words)
        assert again.returncode == 2
        assert f"was moved to local, and continues as {child}" in again.stderr
    seen = client.run("attach", run).stderr
    assert f"new run  launch attach {child[-6:]}" in seen
    assert "launch resume" not in seen
    assert "succeeded" in client.seen("attach", child)
    two.judge()
    for name in ("code/train.py", "data/train"):
        before = two.roots["A"] / "runs" / run / "work" / name
        after = two.roots["local"] / "runs" / child / "work" / name
        assert digest_of(before) == digest_of(after)
    rows = {row["run"]: row for row in json.loads(client.ok("ps", "--json"))["runs"]}
    assert rows[child]["parent"]["run"] == run
    told = [json.loads(line) for line in client.ok("metrics", child, "--json").splitlines()]
    assert sorted({line["step"] for line in told if line.get("name") == "loss"}) == [*range(1, STEPS + 1)]
    assert not (client.runs / run / ".moving").exists()


def digest_of(path):
    """The SHA-256 of a file, or of the only file in a folder."""
    file = path if path.is_file() else next(path.iterdir())
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.mark.long
def test_a_move_goes_to_an_ssh_host_too_and_twice_is_once(two):
    """The second one says that there is nothing to do, or that it has ended; another host is refused by name."""
    client = two.client
    run = two.started("local", later=2.0)
    looked = client.ok("recover", run, "--host", "A", "--dry-run")
    assert f"{run}: without --dry-run it continues from its last checkpoint" in looked
    assert client.summary(run)["state"] == "running"
    client.ok("recover", run, "--host", "A")
    ((child, _),) = two.runs_on("A").items()
    seen = client.run("recover", run, "--host", "A")
    assert "nothing to do" in seen.stdout or "has succeeded" in seen.stderr
    add_host(two, "C")
    seen = client.run("recover", run, "--host", "C")
    assert (seen.returncode, f"was moved to A as {child}" in seen.stderr) == (2, True), seen.stderr
    client.ok("attach", child)
    assert [*two.runs_on("A")] == [child]
    two.judge()


@pytest.mark.long
def test_the_same_host_is_no_move(two):
    """The run is recovered there, or needs nothing."""
    run = two.started("local", pause=0.2, later=1.0)
    assert "nothing to do" in two.client.ok("recover", run, "--host", "local")
    assert "nothing to do" in two.client.ok("recover", run, "--host", "local", "--dry-run")
    two.client.ok("attach", run)
    two.judge()


SAVES = "worker.save(1, lambda folder: open(folder + '/weights', 'w').close())\n"
RESUMES = "worker.resume_from()\n"
WAITS = "print('up', flush=True)\ntime.sleep(600)\n"


@pytest.mark.parametrize(
    ("body", "words", "more", "code", "named"),
    [
        pytest.param(RESUMES, [], [], 1, "launch rerun", marks=pytest.mark.long),
        pytest.param(SAVES, [], [], 1, "launch rerun", marks=pytest.mark.long),
        (RESUMES + SAVES, ["--secret", "HF_TOKEN"], [], 2, "export HF_TOKEN"),
        pytest.param(RESUMES + SAVES, [], ["--profile", "titan_rtx"], 3, "GPU", marks=pytest.mark.long),
        pytest.param(
            RESUMES + SAVES,
            ["--set", "data.train=host:~/numbers"],
            [],
            4,
            "/numbers does not exist",
            marks=pytest.mark.long,
        ),
    ],
    ids=["no checkpoint", "no resume", "no secret", "no card", "no path"],
)
def test_what_is_refused_leaves_the_run_as_it_is(two, ssh_host, body, words, more, code, named):
    """Before anything is stopped; the mend is named."""
    client = two.client
    (ssh_host.home / "numbers").touch()
    client.script(f"import time, launcher_worker as worker\n{body}{WAITS}")
    client.variables["HF_TOKEN"] = "correct-horse-battery"
    run = client.detached("--host", "A", *words, "--", "python", "train.py")
    log = two.roots["A"] / "runs" / run / "record" / "0002" / "log.txt"
    until(lambda: log.exists() and b"up" in log.read_bytes(), "the training")
    del client.variables["HF_TOKEN"]
    for dry in ((), ("--dry-run",)):
        seen = client.run("recover", run, "--host", "local", *more, *dry)
        assert (seen.returncode, named in seen.stderr) == (code, True), seen.stderr
    assert two.runs_on("A") == {run: "running"}
    assert two.runs_on("local") == {}
    client.ok("stop", "--now", run)


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(one, marks=() if one == "start" else pytest.mark.long)
        for one in ("probe", "stop", "pull", "ship", "start")
    ],
)
def test_a_client_killed_in_a_move_leaves_one_run_that_goes_on(client, ssh_host, record_property, stage):
    """At most one trains; `recover` again ends with one finished run, in which each step counts once."""
    dice, begun, again = random.Random(stage), 0, 0
    for turn in range(MOVES):
        with two_hosts(client, ssh_host) as two:
            run = two.started(later=2.0)  # so that it does not end before it is moved
            moving = client.start("recover", run, "--host", "local")
            killed_after(moving, stage, dice.uniform(0.0, 0.5) if turn else 0.0)
            states = two.everywhere()
            assert sum(state in ("running", "resuming", "preparing") for state in states.values()) <= 1
            begun += len(states) > 1
            done = client.run("recover", run, "--host", "local")
            assert done.returncode == 0 or "has succeeded" in done.stderr, done.stderr
            until(lambda: "succeeded" in two.everywhere().values(), "the end")
            two.judge()
            again += len(two.ledger()) - STEPS
        for folder in (client.runs, client.home / ".launch"):
            shutil.rmtree(folder, ignore_errors=True)  # a keeper may be leaving
    record_property("stage", f"up to 0.5 s after `{stage}`" if stage != "start" else "after `start`")
    record_property("kills", str(MOVES))
    record_property("begun", str(begun))
    record_property("finished", str(MOVES))
    record_property("again", str(again))


def test_a_run_that_comes_to_its_end_while_it_is_stopped_is_not_moved(two):
    """It has succeeded where it was; there is no second one."""
    client = two.client
    run = two.started(stops=False)
    done = client.run("recover", run, "--host", "local")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "has succeeded: there is nothing left to move" in done.stderr
    assert two.everywhere() == {run: "succeeded"}
    two.judge()


def test_a_host_that_names_another_run_as_the_successor_is_not_believed(two):
    """The run that it names is not touched, and nothing begins."""
    client = two.client
    run = two.started()
    client.ok("stop", run)
    client.script("print('innocent')", "other.py")
    innocent = client.detached("--", "python", "other.py")
    until(lambda: two.runs_on("local") == {innocent: "succeeded"}, "its end")
    root = json.loads((client.index / innocent / "run.json").read_text())["root"]
    lie = {"run": innocent, "host": "local", "root": root}
    (two.roots["A"] / "runs" / run / "control" / "moved.json").write_text(json.dumps(lie))
    done = client.run("recover", run, "--host", "local")
    assert done.returncode == 1
    assert f"as {innocent}, but that run is not its successor" in done.stderr
    assert two.runs_on("local") == {innocent: "succeeded"}


@pytest.mark.long
def test_a_move_that_broke_off_goes_to_a_third_host_if_the_second_has_nothing_of_it(two):
    """The second one answers, and refuses the child from then on; afterwards the third one is where it goes on."""
    client = two.client
    run = two.started(later=2.0)
    killed_after(client.start("recover", run, "--host", "local"), "sweep")
    record = two.roots["A"] / "runs" / run / "control" / "moved.json"
    first = json.loads(record.read_text())["run"]
    until(lambda: two.runs_on("local") == {}, "the half-made child to go")
    add_host(two, "C")
    client.ok("recover", run, "--host", "C")
    second = json.loads(record.read_text())["run"]
    assert second != first
    assert [path.name for path in (two.roots["local"] / "forgone").iterdir()] == [first]
    seen = client.run("recover", run, "--host", "local")
    assert (seen.returncode, f"was moved to C as {second}" in seen.stderr) == (2, True), seen.stderr
    client.ok("attach", second)
    assert two.runs_on("local") == {}
    assert {int(step) for _, step, _, _ in two.ledger()} == {*range(1, STEPS + 1)}


def add_host(two, name):
    """One more host in the project: another root of the same machine as A."""
    file = two.client.project / "launch.toml"
    table = file.read_text()
    file.write_text(table + table.replace("[hosts.A]", f"[hosts.{name}]").replace('/A"', f'/{name}"'))


@pytest.mark.long
def test_a_child_that_never_started_gives_way_to_another(two):
    """The old host puts the new one on record in its place, and no other: the same command is no dead end."""
    client = two.client
    run = two.started(pause=1.0, later=3.0)
    client.ok("recover", run, "--host", "local")
    ((first, _),) = two.runs_on("local").items()
    client.ok("stop", "--now", first)
    seen = client.run("recover", run, "--host", "local")
    assert (seen.returncode, f"{first}, which has stopped" in seen.stderr) == (2, True), seen.stderr
    never_started(two.roots["local"] / "runs" / first)
    seen = client.run("recover", run, "--host", "local")
    assert (seen.returncode, f"{first} never started" in seen.stderr) == (0, True), seen.stderr
    (second,) = two.runs_on("local").keys() - {first}
    assert json.loads((two.roots["A"] / "runs" / run / "control" / "moved.json").read_text())["run"] == second
    client.ok("attach", second)
    assert two.everywhere() == {run: "stopped", first: "failed", second: "succeeded"}


def never_started(run):
    """Let a run look as if its agent had found it without code: its client died while it was made."""
    state = max((run / "record").glob("[0-9]*/state.json"))
    record = json.loads(state.read_text())
    state.write_text(json.dumps({**record, "state": "failed", "reason": "never-started"}))
