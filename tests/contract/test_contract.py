"""What every place promises, by the same assertions: submit, stream, fail, stop, mend, resume, pull, attach, remove.

The command line is used as a user does. What happened is asked of the host: its sha256sum, find, ps, `docker ps`, and a
ledger that the training writes outside the run's folder.
"""

import json
import shutil
from pathlib import Path

import pytest
from contract.places import HOSTS, OTHER_CLIENTS, PLACES
from testbed.client import until

pytestmark = pytest.mark.slow(reason="each test starts several clients and a run, in each place")

HERE = Path(__file__).parent
LEDGER = "contract-ledger"
STREAMED = {"plan.json", "attempt.json", "state.json", "events.jsonl", "log.txt"}
JOB = f"""
name = "counts"
command = ["python", "train.py"]
steps = 12
save_every_steps = 5
keep_checkpoints = 9
[batch]
global = 8
micro = 4
[settings]
ledger = "{LEDGER}"
crashes_at = 0
waits_at = 0
ignores_sigterm = false
"""


@pytest.fixture(params=PLACES)
def place(request):
    """A place to run at, with the project of the contract and an empty ledger."""
    chosen = request.getfixturevalue(request.param)
    reason = chosen.cannot.get(request.function.__name__.removeprefix("test_"))
    if reason:
        pytest.skip(reason)
    project = chosen.client.project
    shutil.copy(HERE / "train.py", project)
    named = chosen.ledger or LEDGER
    chosen.ledger = chosen.ledger or f"{chosen.root}/cache/{LEDGER}"
    (project / "counts.toml").write_text(JOB.replace(f'"{LEDGER}"', f'"{named}"'))
    yield chosen
    chosen.on_host("sh", "-c", f"rm -f {chosen.ledger}*")


def words(place, **settings):
    """The words of `launch` for the job of the contract."""
    changed = [word for key, value in settings.items() for word in ("--set", f"settings.{key}={value}")]
    return ["--host", place.host, *place.words, "--job", "counts.toml", *changed]


def detached(place, **settings):
    return place.client.detached(*words(place, **settings))


def ledger(place):
    """The steps in the order in which they were trained."""
    return [int(line) for line in place.on_host("cat", place.ledger, check=False).split()]


def until_step(place, step):
    until(lambda: step in ledger(place), f"step {step} at {place.host}", every=0.2)


def go_on(place):
    place.on_host("touch", f"{place.ledger}.go")


def ended(place, run):
    """Follow a run to its end; return its row of `ps`."""
    place.client.run("attach", run)
    return row(place, run)


def row(place, run):
    rows = json.loads(place.client.ok("ps", "--json", "--host", place.place))["runs"]
    return next(values for values in rows if values["run"] == run)


def only_run(place):
    (run,) = [path.name for path in place.client.runs.glob("[0-9]*")]
    return run


def saved_steps(place, run):
    """The steps of the sealed checkpoints, as the host's own files tell it."""
    script = f"find {place.root}/runs/{run} -path '*/checkpoints/*' -name step -exec cat {{}} +"
    return sorted(map(int, place.on_host("sh", "-c", script).split()))


def assert_mirrored(place, run):
    """The client has what was streamed, byte for byte as it is on the host."""
    on_host = place.sums(run)
    mirrored = {
        path: digest for path, digest in place.mirrored_sums(run).items() if Path(path).name in STREAMED
    }
    assert {Path(path).name for path in mirrored} == STREAMED
    expected = sorted(
        (Path(path).name, digest) for path, digest in on_host.items() if Path(path).name in STREAMED
    )
    assert sorted((Path(path).name, digest) for path, digest in mirrored.items()) == expected


def test_the_doctor_finds_the_place_ready(place):
    """Every kind of host has rows of its own, and nothing here is lacking."""
    found = json.loads(place.client.ok("doctor", place.host, "--json"))
    (host,) = found["hosts"]
    assert (host["host"], found["ready"], found["computer"]) == (place.host, True, [])
    assert host["rows"]
    assert host["summary"]


def test_submit_streams_the_run_mends_it_and_brings_its_artifacts(place):
    """It succeeds with exit code 0 after one crash; record, log and artifacts are the host's, by sha256sum on both sides.

    The next attempt has half the micro-batch and trains each step after the checkpoint exactly once. Nothing is left alive.
    """
    said = place.client.seen(*words(place, crashes_at=7))
    run = only_run(place)
    assert "succeeded" in said
    values = row(place, run)
    assert (values["state"], values["reason"], values["attempt"]) == ("succeeded", "completed", 2)
    assert ledger(place) == [*range(1, 8), *range(6, 13)]
    assert_mirrored(place, run)
    log = place.client.ok("logs", run)
    assert log.startswith("begin at 0 micro-batch 4\n")
    assert log.endswith("begin at 5 micro-batch 2\n")
    metrics = [json.loads(line) for line in place.client.ok("metrics", run, "--json").splitlines()]
    assert [(line["step"], line["value"]) for line in metrics] == [(step, 1 / step) for step in range(1, 13)]
    until(lambda: not place.alive(run), "the agent to leave")


PLAIN = """
import os, sys
os.makedirs("out/checkpoint-3")
for name in ("out/model.bin", "out/checkpoint-3/model.bin", "log.csv", os.path.expanduser("~/note") if os.environ["HOME"].endswith("/work/home") else "note"):
    with open(name, "wb") as file:
        file.write(os.urandom(100_000))
with open(os.path.join(os.environ["LAUNCH_ARTIFACTS"], "adapter"), "wb") as file:
    file.write(os.urandom(1000))
print("so far, with", type(sys.meta_path[0]).__name__, flush=True)
raise SystemExit(3)
"""


@pytest.mark.parametrize("place", HOSTS, indirect=True)
def test_a_plain_script_that_fails_brings_its_files_home_and_frees_its_host(place):
    """Without the worker. The command leaves with 1, shows the last words and what to type next.

    Both sides agree by sha256sum; what was not pulled keeps the run there; then nothing is left.
    """
    (place.client.project / "plain.py").write_text(PLAIN)
    done = place.client.run("--host", place.host, *place.words, "--", "python", "plain.py")
    run = only_run(place)
    assert done.returncode == 1
    assert "so far, with ImportWatch\n" in done.stdout  # the start-up hook is in the training of every place
    said = done.stdout + done.stderr
    assert "exit-nonzero" in done.stderr
    assert "launch logs" in done.stderr
    values = row(place, run)
    assert (values["state"], values["reason"], values["evidence"]["exit"]) == ("failed", "exit-nonzero", 3)
    until(lambda: not place.alive(run), "the agent to leave")
    assert "  files " in said
    assert f"checkpoints stay on {place.host}: out/checkpoint-3" in said
    places = (("outputs/HOME/", "work/home/"), ("outputs/", "work/code/"), ("artifacts/", "work/artifacts/"))
    here = {}
    for path, digest in place.mirrored_sums(run).items():
        plain = path.removeprefix("./")
        found = [(mine, there) for mine, there in places if plain.startswith(mine)]
        if found:
            here[found[0][1] + plain.removeprefix(found[0][0])] = digest
    on_host = {path.removeprefix("./"): digest for path, digest in place.sums(run).items()}
    assert len(here) == 4
    assert here.items() <= on_host.items()
    refused = place.client.run("rm", run)
    assert (refused.returncode, "out/checkpoint-3/model.bin" in refused.stderr) == (1, True)
    place.client.ok("pull", run, "--all")
    kept = place.mirrored_sums(run)
    assert "freed there; its 5 files and record stay here" in place.client.ok("rm", run)
    assert run not in place.on_host("ls", "-A", f"{place.root}/runs")  # nor what a removal leaves on its way
    after = place.mirrored_sums(run)
    assert {
        path: kept[path] for path in kept if "/outputs/" in path or "/artifacts/" in path
    }.items() <= after.items()


@pytest.mark.parametrize("place", OTHER_CLIENTS, indirect=True)
def test_another_client_follows_a_run_pulls_it_and_removes_it(place):
    """With an empty folder it catches up in the middle and follows the run to its end; with another one it pulls the artifacts.

    They are equal by sha256sum on both sides. Then no file names or mentions the run on the host or here, and the place
    keeps nothing of it.
    """
    run = detached(place, waits_at=7)
    until_step(place, 7)
    shutil.rmtree(place.client.runs)
    go_on(place)
    assert "succeeded" in place.client.seen("attach", run, "--host", place.place)
    assert ledger(place) == list(range(1, 13))
    assert_mirrored(place, run)
    shutil.rmtree(place.client.runs)
    place.client.ok("pull", run, "--host", place.place)
    on_host = artifacts(place.sums(run))
    assert set(on_host) == {"adapter/weights", "a name with spaces.txt"}
    assert artifacts(place.mirrored_sums(run)) == on_host
    assert place.traces(run)
    refused = place.client.run("rm", run)
    assert (refused.returncode, " only on " in refused.stderr) == (1, True)
    assert place.traces(run)
    place.client.ok("rm", "--force", "--here", run)
    place.client.ok("gc", "--host", place.place)
    assert place.traces(run) == []
    assert place.kept(run) == []
    assert not (place.client.runs / run).exists()


def artifacts(sums):
    """The sums of the artifacts, by their paths below that folder."""
    return {
        path.partition("/artifacts/")[2]: digest for path, digest in sums.items() if "/artifacts/" in path
    }


@pytest.mark.parametrize("place", HOSTS, indirect=True)
def test_stop_now_does_not_wait(place):
    """A training that ignores SIGTERM is ended at once and saves nothing more."""
    run = detached(place, waits_at=7, ignores_sigterm="true")
    until_step(place, 7)
    assert "stopped: by-user-now" in place.client.ok("stop", "--now", run)
    until(lambda: not place.alive(run), "everything of it to end", 10)
    assert saved_steps(place, run) == [5]


@pytest.mark.parametrize("place", HOSTS, indirect=True)
def test_a_stopped_run_has_saved_and_its_child_continues(place):
    """The last step is saved, nothing is left alive, and the state says who ended it. The child begins there: no step is trained twice."""
    run = detached(place, waits_at=7)
    until_step(place, 7)
    assert "stopped: by-user" in place.client.ok("stop", run)
    until(lambda: not place.alive(run), "everything of it to end", 10)
    assert ledger(place) == list(range(1, 8))
    assert saved_steps(place, run) == [5, 7]
    assert row(place, run)["reason"] == "by-user"
    said = place.client.seen("resume", run, "--detach", "--set", "settings.waits_at=0", "--set", "steps=14")
    child = said.split()[-1]
    assert child != run
    assert ended(place, child)["state"] == "succeeded"
    assert ledger(place) == list(range(1, 15))
    assert place.client.ok("logs", child) == "begin at 7 micro-batch 4\n"
    assert_mirrored(place, child)
