"""A run whose host does not answer goes on elsewhere from what this client holds; the host hears of it when it answers."""

import contextlib
import json
import shutil

import pytest
from testbed.client import processes_of, until
from testbed.two_hosts import STEPS, killed_after, two_hosts

pytestmark = pytest.mark.slow(reason="each test starts several clients")


@pytest.fixture
def two(client, ssh_host):
    """An SSH host `A` with another user, and this machine; and a job with data."""
    with two_hosts(client, ssh_host) as made:
        yield made


def pulled(two):
    """A run in the middle of its work on A, which it will not end there; its newest checkpoint is here."""
    run = two.started(pause=0.3, later=60)
    two.client.ok("pull", run, "--checkpoint", "last")
    return run


def trained(two, run):
    """The steps of one run, in the order in which it trained them."""
    return [int(step) for named, step, _, _ in two.ledger() if named == run]


def row(two, run):
    """A run's row of `launch ps --json`."""
    return two.client.summary(run)


def test_a_run_that_nobody_followed_lacks_a_checkpoint_and_not_a_call(two, ssh_host):
    """Nothing is known here of what its script calls: the mend is to have a checkpoint."""
    run = two.started(pause=0.3, later=60)
    with ssh_host.away():
        seen = two.client.run("recover", run, "--host", "local", "--abandon")
    assert seen.returncode == 1
    assert f"no whole checkpoint of {run} is here" in seen.stderr
    assert "never called" not in seen.stderr
    assert two.runs_on("local") == {}


def test_a_run_goes_on_without_its_host_which_ends_its_own_when_it_answers(two, ssh_host):
    """From the checkpoint here; A trains on until any verb reaches it, and then nothing of it is left."""
    client = two.client
    run = pulled(two)
    newest = max(int(path.name.rpartition("-")[2]) for path in (client.runs / run / "checkpoints").iterdir())
    with ssh_host.away():
        seen = client.run("recover", run, "--host", "local")
        assert (seen.returncode, f"launch recover {run[-6:]} --host local --abandon" in seen.stderr) == (
            4,
            True,
        )
        assert two.runs_on("local") == {}
        seen = client.run("recover", run, "--host", "local", "--abandon")
        assert seen.returncode == 0, seen.stderr
        ((child, _),) = two.runs_on("local").items()
        assert f"{child} on local continues from step {newest} of {run}" in seen.stdout
        assert f"A may still train {run}" in seen.stderr
        until(lambda: trained(two, child), "a step of the child")
        assert processes_of(two.roots["A"] / "runs" / run)
        assert row(two, run)["goes_on"] | {"abandoned": 0} == {
            "run": child, "host": "local", "root": row(two, run)["goes_on"]["root"],
            "abandoned": 0, "told": None, "settled": None, "also": None, "given_up": [],
        }  # fmt: skip
        listed = client.ok("ps")
        assert f"abandoned, continues as {child[-6:]}; not yet informed" in listed
        assert f"its parent {run[-6:]} may still train on A" in listed
    swept = client.seen("sweep", "--host", "A")  # any verb
    assert f"{run} on A was ended, at step " in swept
    assert f"it continues as {child}" in swept
    assert not processes_of(two.roots["A"] / "runs" / run)
    assert two.runs_on("A") == {run: "stopped"}
    moved = json.loads((two.roots["A"] / "runs" / run / "control" / "moved.json").read_text())
    assert moved["run"] == child
    assert row(two, run)["goes_on"]["settled"] is not None
    assert "not yet informed" not in client.ok("ps")
    assert "succeeded" in client.seen("attach", child)
    assert trained(two, child) == [*range(newest + 1, STEPS + 1)]
    assert two.everywhere() == {run: "stopped", child: "succeeded"}
    told = [json.loads(line) for line in client.ok("metrics", child, "--json").splitlines()]
    curve = [(line["step"], line["run"]) for line in told if line.get("name") == "loss"]
    assert curve == [(step, run if step <= newest else child) for step in range(1, STEPS + 1)]


@pytest.mark.long
def test_a_host_that_answers_is_stopped_as_in_any_move(two):
    """--abandon starts no second training of a run that can be stopped."""
    client = two.client
    run = two.started()
    seen = client.run("recover", run, "--host", "local", "--abandon")
    assert (seen.returncode, "A answers" in seen.stderr) == (0, True), seen.stderr
    assert two.runs_on("A") == {run: "stopped"}
    ((child, _),) = two.runs_on("local").items()
    assert row(two, run)["goes_on"]["abandoned"] is None
    client.ok("attach", child)
    two.judge()


STAGES = ["read", "probe", "ship", "start"]


@pytest.mark.long
@pytest.mark.parametrize("stage", STAGES)
def test_a_client_killed_while_it_abandons_leaves_one_child(two, ssh_host, stage):
    """Before the decision is on record none; after it, or after the start, one: the same command again ends there."""
    client = two.client
    run = pulled(two)
    with ssh_host.away():
        killed_after(client.start("recover", run, "--host", "local", "--abandon"), stage)
        again = client.run("recover", run, "--host", "local", "--abandon")
        assert again.returncode == 0, again.stderr
        ((child, _),) = two.runs_on("local").items()
        assert row(two, run)["goes_on"]["run"] == child
    client.ok("sweep", "--host", "A")
    assert two.runs_on("A") == {run: "stopped"}
    again = client.run("recover", run, "--host", "local")  # A has it on its own record by now
    assert again.returncode == 0 or "has succeeded" in again.stderr, again.stderr
    client.ok("attach", child)
    assert two.everywhere() == {run: "stopped", child: "succeeded"}
    steps = trained(two, child)
    assert steps == [*range(steps[0], STEPS + 1)]


@pytest.mark.long
def test_a_move_that_broke_off_is_taken_up_without_its_host(two, ssh_host):
    """The child that an ordinary move has begun is the one that goes on, although A has died since."""
    client = two.client
    run = pulled(two)
    killed_after(client.start("recover", run, "--host", "local"), "ship")
    with ssh_host.away():
        seen = client.run("recover", run, "--host", "local", "--abandon")
        assert seen.returncode == 0, seen.stderr
        ((child, _),) = two.runs_on("local").items()
    client.ok("attach", child)
    assert two.everywhere() == {run: "stopped", child: "succeeded"}


def test_what_cannot_be_proven_is_refused_and_nothing_is_made(two, ssh_host):
    """Changed code, a changed or missing checkpoint, no record of what was sent: each with its mend; A is told nothing."""
    client = two.client
    run = pulled(two)
    checkpoint = next((client.runs / run / "checkpoints").iterdir())
    abandon = ("recover", run, "--host", "local", "--abandon")

    def refused(words):
        seen = client.run(*abandon)
        assert (seen.returncode, words in seen.stderr) == (1, True), seen.stderr
        assert "launch rerun" in seen.stderr
        assert two.runs_on("local") == {}
        assert row(two, run)["goes_on"] is None

    with ssh_host.away():
        with changed(client.project / "train.py"):
            refused("not as it was sent to A, and local has no copy: train.py")
        with changed(client.project / "numbers.txt"):
            refused("data/train/numbers.txt")
        with changed(checkpoint / "weights"):
            refused("weights is not as its manifest says")
        with changed(checkpoint / "manifest.json", b'{"step": 3, "files": {}}'):
            refused("its manifest is not one that its host sent")
        with changed(client.index / run / "sent.json.gz"):
            refused("no record of the code and data")
        shutil.move(checkpoint, client.project / "away")
        refused(f"no whole checkpoint of {run} is here")
        shutil.move(client.project / "away", checkpoint)
    assert two.runs_on("A") == {run: "running"}
    client.ok("stop", "--now", run)


@pytest.mark.long
@pytest.mark.parametrize(
    ("body", "words", "code", "named"),
    [
        ("", [], 1, "launch rerun"),
        ("worker.resume_from()\n", ["--secret", "HF_TOKEN"], 2, "export HF_TOKEN"),
    ],
    ids=["no resume", "no secret"],
)
def test_what_no_move_could_do_is_refused_too(two, ssh_host, body, words, code, named):
    """A script that starts at step 1 again, a secret that is not set here."""
    client = two.client
    save = "worker.save(1, lambda folder: open(folder + '/weights', 'w').close())\n"
    client.script(f"import time, launcher_worker as worker\n{body}{save}time.sleep(600)\n")
    client.variables["HF_TOKEN"] = "correct-horse-battery"
    run = client.detached("--host", "A", *words, "--", "python", "train.py")
    until(lambda: client.run("pull", run, "--checkpoint", "last").returncode == 0, "its checkpoint", every=1)
    del client.variables["HF_TOKEN"]
    with ssh_host.away():
        seen = client.run("recover", run, "--host", "local", "--abandon")
        assert (seen.returncode, named in seen.stderr) == (code, True), seen.stderr
        assert (two.runs_on("local"), row(two, run)["goes_on"]) == ({}, None)
    client.ok("stop", "--now", run)


@pytest.mark.long
def test_of_two_who_abandon_a_run_at_once_one_begins_its_child(two, ssh_host):
    """The other one says so, or finds nothing to do."""
    client = two.client
    run = pulled(two)
    with ssh_host.away():
        both = [client.start("recover", run, "--host", "local", "--abandon") for _ in range(2)]
        said = [process.communicate(timeout=180)[1] for process in both]
        codes = sorted(process.returncode for process in both)
        assert (codes[0], codes[1] in (0, 1)) == (0, True), said
        assert len(two.runs_on("local")) == 1
        assert {row(two, run)["goes_on"]["run"]} == two.runs_on("local").keys()


@contextlib.contextmanager
def changed(path, content=None):
    """Give a file other contents for a while, by default as many bytes."""
    before = path.read_bytes()
    path.write_bytes(content or b"#" * len(before))
    yield
    path.write_bytes(before)


@pytest.mark.long
def test_the_abandoned_run_says_where_it_goes_on_and_another_root_hears_nothing(two, ssh_host):
    """`attach` and `recover` name the child. A host of the same name with another root is not told."""
    client = two.client
    run = pulled(two)
    with ssh_host.away():
        client.ok("recover", run, "--host", "local", "--abandon")
        ((child, _),) = two.runs_on("local").items()
        seen = client.run("attach", run)
        assert (seen.returncode, f"launch attach {child[-6:]}" in seen.stderr) == (4, True), seen.stderr
        seen = client.run("recover", run)
        assert (seen.returncode, f"continues on local as {child}" in seen.stderr) == (2, True), seen.stderr
        assert f"its parent {run[-6:]} may still train on A" in until_note(client, child)
    table = (client.project / "launch.toml").read_text()
    (client.project / "launch.toml").write_text(table.replace(str(two.roots["A"]), f"{two.roots['A']}/other"))
    client.ok("sweep", "--host", "A")
    assert two.runs_on("A") == {run: "running"}
    seen = client.run("attach", run)  # its mirror knows the true root
    assert f"continues on local as {child}" in seen.stderr
    assert two.runs_on("A") == {run: "stopped"}
    client.ok("stop", "--now", child)


def until_note(client, child):
    """What `attach` says until it has found the parent."""
    process, said = client.start("attach", child), ""
    for line in iter(process.stderr.readline, ""):
        said += line
        if "may still train" in line:
            break
    process.kill()
    process.communicate()
    return said
