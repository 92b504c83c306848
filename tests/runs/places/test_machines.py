"""Runs on machines of their own: a home that two of them share, a machine that dies, roots that are full or read-only."""

import json
import re
import tempfile
from pathlib import Path

import pytest
from testbed.client import missing, until
from testbed.kept import CLEAR_ROOT
from testbed.machine import Machine, remove_bridge
from testbed.missing_part import MissingPartError

pytestmark = pytest.mark.testbed

STEPS = """
import os, sys, time
import launcher_worker as worker
resumed = worker.resume_from()
begin = int(open(os.path.join(resumed, "step")).read()) if resumed else 0
for step in range(begin + 1, 401):
    time.sleep(0.05)
    worker.log(step, loss=1.0 / step)
    if step % 5 == 0:
        worker.save(step, lambda folder: open(os.path.join(folder, "step"), "w").write(str(step)))
    if os.path.exists(os.path.expanduser("~/enough")):
        break
worker.done(step)
"""


@pytest.fixture(scope="module")
def pair():
    """Two machines, alpha and beta, whose users' homes are one folder."""
    folder = Path(tempfile.mkdtemp(prefix="launch-testbed-"))
    folder.chmod(0o755)
    machines = [
        Machine(name, number, folder / name, folder / "homes")
        for number, name in enumerate(("alpha", "beta"), start=20)
    ]
    try:
        for machine in machines:
            machine.make()
            machine.up()
        yield machines
    except MissingPartError as error:
        missing(str(error))
    finally:
        for machine in machines:
            if machine.folder.exists():
                machine.down()
        remove_bridge()


@pytest.fixture
def shared(client, pair):
    """The two, known to a client by their names."""
    alpha, beta = pair
    (client.project / "launch.toml").write_text(alpha.table() + beta.table())
    alpha.ssh("sh", "-c", f"rm -rf enough; {CLEAR_ROOT}")
    client.script(STEPS)
    return alpha, beta


def state(client, run, host):
    rows = json.loads(client.ok("ps", "--json", "--host", host))["runs"]
    return next(row["state"] for row in rows if row["run"] == run)


def steps(machine, run, file="*/events.jsonl"):
    """The steps on record, by plain ssh."""
    text = machine.ssh("sh", "-c", f"cat .launch/runs/{run}/record/{file}", check=False)
    events = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return [event["step"] for event in events if event["kind"] == "metric"]


def steps_by_attempt(machine, run):
    """The steps on record, a list for each start of the training."""
    folders = machine.ssh(
        "sh", "-c", f"cd .launch/runs/{run}/record && grep -l '\"metric\"' */events.jsonl"
    ).split()
    return [steps(machine, run, folder) for folder in folders]


@pytest.mark.long
def test_a_live_run_of_another_host_in_a_shared_home_is_never_judged(client, shared):
    """Neither its locks nor its pids mean anything on beta: it is told as written, and refused to be touched there."""
    alpha, beta = shared
    run = client.detached("--host", "alpha", "--", "python", "train.py")
    until(lambda: len(steps(alpha, run)) > 3, "some steps")
    assert state(client, run, "beta") == "running"
    for words in (["stop", run], ["stop", "--now", run], ["rm", run]):
        done = client.run(*words, "--host", "beta")
        assert done.returncode in (1, 4)
        assert "alpha" in done.stderr or "another host" in done.stderr
    before = len(steps(alpha, run))
    until(lambda: len(steps(alpha, run)) > before + 3, "more steps")
    beta.ssh("touch", "enough")
    until(lambda: state(client, run, "alpha") == "succeeded", "its end on alpha")
    assert state(client, run, "beta") == "succeeded"


@pytest.mark.long
def test_a_machine_that_dies_leaves_a_run_that_goes_on_where_it_was(client, shared):
    """Power off, power on: interrupted, said so, and resumed by `attach` from the last whole checkpoint."""
    alpha, _ = shared
    run = client.detached("--host", "alpha", "--", "python", "train.py")
    until(lambda: len(steps(alpha, run)) > 12, "some steps")
    alpha.kill()
    done = client.run("ps")
    assert "unreachable" in done.stdout
    alpha.up()
    assert state(client, run, "alpha") == "interrupted"
    alpha.ssh("sh", "-c", "sleep 2; touch enough &")
    out = client.seen("attach", run)
    assert "interrupted" in out
    assert "succeeded" in out
    first, second = steps_by_attempt(alpha, run)
    assert first == list(range(1, len(first) + 1))
    assert second == list(range(second[0], second[-1] + 1))
    assert second[0] % 5 == 1
    # The last metric may have died in the agent's socket while the checkpoint behind it was already whole.
    assert len(first) - 5 <= second[0] - 1 <= len(first) + 1


@pytest.mark.parametrize(
    ("option", "said"),
    [
        pytest.param("size=16k", "less than 1 GB free", marks=pytest.mark.long),  # not even the agent fits
        ("size=900k", "less than 1 GB free|No space left on device"),  # its compiled files take what is left
        pytest.param("size=8m", "less than 1 GB free", marks=pytest.mark.long),  # there is room for all of it
        ("ro", "Read-only file system"),
    ],
)
def test_a_root_that_takes_nothing_is_told_with_the_key_to_set(client, shared, option, said):
    """A full disk, a used-up quota (which is the same to us) and a read-only one: no traceback, nothing begun."""
    alpha, _ = shared
    place = f"/home/{alpha.user}/small"
    alpha.ssh("mkdir", "-p", "small")
    owner = f"uid={alpha.ssh('id', '-u').strip()},mode=700"
    alpha.enter("mount", "-t", "tmpfs", "-o", f"{owner},{option}", "tmpfs", place)
    try:
        (client.project / "launch.toml").write_text(alpha.table(root=place))
        done = client.run("--host", "alpha", "--", "true")
        assert done.returncode in (3, 4)
        assert re.search(said, done.stderr)
        assert "root" in done.stderr
        assert alpha.ssh("ls", f"{place}/runs", check=False) == ""
    finally:
        alpha.enter("umount", "--lazy", place)


HOLDS = """
import sys, time
sys.path.insert(0, {folder!r})
import context
context.open_context()
time.sleep(1000)
"""


@pytest.mark.long
def test_a_holder_is_told_by_the_pid_that_its_own_host_knows(client, shared, cards):
    """Cards, processes and their ages are of the host; the run there is ours, the one beside it is not."""
    alpha, _ = shared
    cards.put("l40s", "l40s")
    client.script(HOLDS.format(folder=str(cards.folder)))

    def probed():
        told = json.loads(client.ok("probe", "--json", "--host", "alpha"))
        return {holder["pid"]: holder for gpu in told["gpus"] for holder in gpu["holders"]}

    with cards.on(alpha.homes / alpha.user):
        words = ("--host", "alpha", "--profile", "l40s", "--", "python3", "train.py")
        run = client.detached(*words)
        (pid,) = until(probed, "the context")
        # what it forks bears its name until it becomes another program
        until(lambda: alpha.ssh("pgrep", "-f", "train.py").split() == [str(pid)], "its process alone")
        assert (probed()[pid]["ownership"], probed()[pid]["run"]) == ("ours-live", run)
        beside = f"HOME=/ setsid --fork python3 -B {cards.folder}/holder.py 70 >/dev/null 2>&1 </dev/null"
        alpha.ssh("sh", "-c", f"CUDA_VISIBLE_DEVICES=1 {beside}")
        until(lambda: len(probed()) == 2, "the other context")
        (other,) = set(probed()) - {pid}
        assert (probed()[other]["ownership"], probed()[other]["user"]) == ("stranger", alpha.user)
        client.ok("stop", run, "--now")
        until(lambda: set(probed()) == {other}, "the run's card to be free")
        alpha.ssh("kill", str(other))
