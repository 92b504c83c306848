"""`launch recover`: a run that waits gets what it waits for, and an interrupted one goes on, exactly once."""

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from testbed.client import processes_of, until

pytestmark = pytest.mark.slow(reason="each test starts several clients")

FAIL_ONCE = """
import os, sys
import launcher_worker as worker
worker.resume_from()
with open({ledger!r}, "a") as file:
    print(os.environ.get("CUDA_VISIBLE_DEVICES") or "none", file=file)
if not os.path.exists({fixed!r}):
    raise RuntimeError({error!r})
worker.log(1, loss=1.0)
worker.done(1)
"""
NO_KERNEL = "CUDA error: no kernel image is available for execution on the device"
LOST = "CUDA error: GPU is lost. Reboot the system to recover this GPU"


def folder_of(client, run):
    return client.home / ".launch" / "runs" / run


def ledger(client):
    path = client.home / "ledger"
    return path.read_text().split() if path.exists() else []


def fails_once(client, error):
    """A training that fails with an error until a file is there."""
    names = {"ledger": str(client.home / "ledger"), "fixed": str(client.home / "fixed")}
    client.script(FAIL_ONCE.format(error=error, **names))


def until_state(client, run, state):
    """Wait for a state by the file alone, as a stranger would read it."""

    def newest():
        folders = sorted((folder_of(client, run) / "record").glob("[0-9]*/state.json"))
        return json.loads(folders[-1].read_text()) if folders else {}

    until(lambda: newest().get("state") == state, state)
    until(lambda: not processes_of(folder_of(client, run)), "its agent to leave")
    return newest()


def kill_all(client, run):
    """End agent, keeper and training, as a reboot does."""
    for pid in processes_of(folder_of(client, run)):
        os.kill(pid, signal.SIGKILL)
    until(lambda: not processes_of(folder_of(client, run)), "their end")


# a run whose agent died


PRINTED = """
import time
for step in range(1, 34):
    print({"step": step, "loss": 1 / step}, flush=True)
time.sleep(600)
"""


def test_a_run_whose_agent_died_has_one_last_step_and_one_time(client):
    """In each view, before and after its end; the time in which it was dead does not count."""
    client.script(PRINTED)
    run = client.detached("--", "python", "train.py")
    events = folder_of(client, run) / "record/0002/events.jsonl"
    until(lambda: events.exists() and '"step":33' in events.read_text(), "its steps")
    kill_all(client, run)
    dead = client.summary(run, "--host", "local")
    assert (dead["state"], dead["step"], dead["loss"]) == ("interrupted", 33, 1 / 33)
    assert client.summary(run)["took_s"] == dead["took_s"] < 60
    seen = client.run("attach", run)
    assert (seen.returncode, "step 33" in seen.stderr) == (1, True)
    assert ("it continues" in seen.stderr, f"launch rerun {run[-6:]}" in seen.stderr) == (False, True)
    (told,) = {
        (row["step"], row["took_s"]) for row in (client.summary(run), client.summary(run, "--host", "local"))
    }
    assert told == (33, pytest.approx(dead["took_s"], abs=10))


def test_a_run_that_cannot_continue_is_not_said_to(client):
    """Its script is not started again, and the command that begins anew is named."""
    client.script("print('up', flush=True)\nimport time; time.sleep(600)\n")
    run = client.detached("--", "python", "train.py")
    log = folder_of(client, run) / "record/0002/log.txt"
    until(lambda: log.exists() and log.read_text(), "the script")
    kill_all(client, run)
    seen = client.run("recover", run)
    assert (seen.returncode, "was not recovered: failed: not-restartable" in seen.stdout) == (1, True)
    assert f"launch rerun {run[-6:]}" in seen.stdout
    assert not processes_of(folder_of(client, run))
    assert client.ok("logs", run).split() == ["up"]
    assert client.summary(run)["attempt"] is None or client.summary(run)["attempt"] == 1


# what a run waits for


def test_a_run_without_a_kernel_for_its_card_waits_and_goes_on_after_the_mend(client):
    """Its failure is answered once: it does not wait again for the same one. `ps` and the end name the command."""
    fails_once(client, NO_KERNEL)
    seen = client.run("--", "python", "train.py")
    run = json.loads(client.ok("ps", "--json"))["runs"][0]["run"]
    short = run.rpartition("-")[2]
    assert seen.returncode == 5
    assert f"launch recover {short}" in seen.stderr + seen.stdout
    waiting = until_state(client, run, "waiting")
    assert (waiting["reason"], waiting["evidence"]["class"]) == ("image", "no-kernel-image")
    row = next(line for line in client.ok("ps").splitlines() if short in line)
    assert "waiting: image" in row
    assert f"launch recover {short}" in row
    (client.home / "fixed").touch()
    assert "continues" in client.ok("recover", run)
    assert "succeeded" in client.seen("attach", run)
    assert len(ledger(client)) == 2
    (told,) = [
        folder
        for folder in sorted((folder_of(client, run) / "record").glob("[0-9]*/state.json"))
        if "remedy" in json.loads(folder.read_text())
    ]
    assert json.loads(told.read_text())["remedy"]["class"] == "no-kernel-image"


def test_a_script_that_cannot_start_again_fails_as_before(client):
    """Nothing that it did may be done twice."""
    client.script(f"raise RuntimeError({NO_KERNEL!r})")
    seen = client.run("--", "python", "train.py")
    assert (seen.returncode, "no-kernel-image" in seen.stderr + seen.stdout) == (1, True)


def test_a_lost_card_is_never_taken_again(client, listed_cards):
    """The run goes on with another one that it may have; while there is none, it still waits."""
    listed_cards(2)
    fails_once(client, LOST)
    run = client.detached("--profile", "titan_rtx", "--", "python", "train.py")
    waiting = until_state(client, run, "waiting")
    (lost,) = ledger(client)
    assert (waiting["reason"], waiting["evidence"]["lost"]) == ("card", [lost])
    (client.home / "fixed").touch()
    assert "continues" in client.ok("recover", run)
    assert "succeeded" in client.seen("attach", run)
    assert ledger(client) == [lost, ({"GPU-card-0", "GPU-card-1"} - {lost}).pop()]


@pytest.mark.long
def test_the_only_card_of_a_run_is_lost(client, listed_cards):
    """Nothing is started; the answer says why, and how to look again."""
    listed_cards(1)
    fails_once(client, LOST)
    run = client.detached("--profile", "titan_rtx", "--", "python", "train.py")
    until_state(client, run, "waiting")
    (client.home / "fixed").touch()
    for verb in ("recover", "attach"):
        seen = client.run(verb, run)
        assert seen.returncode == 5
        assert "GPU-card-0" in seen.stdout + seen.stderr
    assert ledger(client) == ["GPU-card-0"]


def test_a_run_that_lost_its_secrets_waits_for_them(client):
    """They are sent only when they are missing; a client without them is told which to set, and nothing starts."""
    value = "correct-horse-battery"
    client.variables["HF_TOKEN"] = value
    out = str(client.home / "out")
    client.script(
        "import hashlib, os, time\n"
        f"open({out!r}, 'a').write(hashlib.sha256(os.environb[b'HF_TOKEN']).hexdigest() + '\\n')\n"
        f"while not os.path.exists({str(client.home / 'go')!r}): time.sleep(0.05)\n"
    )
    run = client.detached("--secret", "HF_TOKEN", "--set", "restart=true", "--", "python", "train.py")
    until(lambda: Path(out).exists() and Path(out).read_text(), "the first attempt")
    kill_all(client, run)
    (folder_of(client, run) / "record" / "secrets.env").unlink()
    del client.variables["HF_TOKEN"]
    assert "without --dry-run it continues: it is interrupted" in client.ok("recover", run, "--dry-run")
    assert client.summary(run)["state"] == "interrupted"
    seen = client.run("recover", run)
    assert (seen.returncode, "HF_TOKEN" in seen.stderr) == (2, True)
    assert "export HF_TOKEN" in seen.stderr
    waiting = until_state(client, run, "waiting")
    assert (waiting["reason"], waiting["evidence"]) == ("secret", {"secrets": "missing: HF_TOKEN"})
    client.variables["HF_TOKEN"] = value
    (client.home / "go").touch()
    assert "continues" in client.ok("recover", run)
    assert "succeeded" in client.seen("attach", run)
    assert Path(out).read_text().split() == [hashlib.sha256(value.encode()).hexdigest()] * 2
    everything = b"".join(path.read_bytes() for path in folder_of(client, run).rglob("*") if path.is_file())
    assert value.encode() not in everything


# an interrupted run

STEPS = """
import os, time
import launcher_worker as worker
found = worker.resume_from()
first = int(found.rsplit("-", 1)[1]) + 1 if found else 1
for step in range(first, 13):
    with open({ledger!r}, "a") as file:
        print(step, file=file)
    worker.log(step, loss=1.0 / step)
    worker.save(step, lambda folder: open(os.path.join(folder, "weights"), "w").close())
    time.sleep({pause})
worker.done(12)
"""


def interrupted(client, pause=0.3):
    """A run whose agent, keeper and training were killed in the middle."""
    client.script(STEPS.format(ledger=str(client.home / "ledger"), pause=pause))
    run = client.detached("--", "python", "train.py")
    until(lambda: len(ledger(client)) >= 3, "three steps")
    kill_all(client, run)
    return run


def is_once(client):
    """At most one checkpoint interval was trained again, and no step was left out."""
    steps = [int(word) for word in ledger(client)]
    return sorted(set(steps)) == [*range(1, 13)] and len(steps) <= 13


@pytest.mark.long
def test_of_several_clients_at_once_one_goes_on_with_the_run(client):
    """The others say that there is nothing to do, or who did it; no step is trained by two."""
    run = interrupted(client)
    started = [client.start("recover", run) for _ in range(4)]
    said = []
    for one in started:
        out, err = one.communicate(timeout=100)
        assert one.returncode == 0, out + err
        said.append(out)
    assert sum("continues" in out for out in said) == 1, said
    assert sum("nothing to do" in out for out in said) == 3, said
    assert "succeeded" in client.seen("attach", run)
    assert is_once(client)


@pytest.mark.long
def test_another_machine_of_the_same_login_recovers_it_from_an_empty_folder(client):
    """By the host's name and the run's id alone."""
    run = interrupted(client)
    shutil.rmtree(client.runs)
    seen = json.loads(client.ok("recover", run, "--host", "local", "--json").splitlines()[-1])
    assert [(one["run"], one["outcome"]) for one in seen["runs"]] == [(run, "recovered")]
    assert "succeeded" in client.seen("attach", run)
    assert is_once(client)


@pytest.mark.long
def test_all_that_need_it_are_recovered_and_nothing_else(client):
    """One line for each; a run that has ended or is running is no matter of it."""
    first = interrupted(client)
    client.script("print('done')")
    client.ok("--", "python", "train.py")
    out = client.ok("recover", "--all")
    assert [line.split()[0] for line in out.splitlines()] == [first]
    assert "succeeded" in client.seen("attach", first)
    assert client.ok("recover", "--all") == "no run waits or was interrupted\n"


def test_a_run_that_needs_nothing_an_ended_and_an_unknown_one_are_told_apart(client):
    """Running: nothing to do, and neither `ps`, nor `logs`, nor `attach` makes a folder. Ended: what makes a new run of it is named."""
    client.script(
        f"import os, time\nwhile not os.path.exists({str(client.home / 'go')!r}): time.sleep(0.05)\n"
    )
    run = client.detached("--", "python", "train.py")
    until(lambda: "running" in json.dumps(client.summary(run)), "running")
    seen = client.run("recover", run)
    assert (seen.returncode, "nothing to do" in seen.stdout) == (0, True)
    follower = client.start("attach", run)
    client.ok("ps")
    client.ok("logs", run)
    follower.send_signal(signal.SIGINT)
    follower.communicate(timeout=180)
    folders = sorted(path.name for path in (folder_of(client, run) / "record").glob("[0-9]*"))
    assert folders == ["0001", "0002"]
    (client.home / "go").touch()
    client.ok("attach", run)
    ended = client.run("recover", run)
    assert (ended.returncode, "launch rerun" in ended.stderr) == (2, True)  # it has saved nothing
    unknown = client.run("recover", "nothere")
    assert (unknown.returncode, "nothere" in unknown.stderr) == (2, True)


def test_a_host_that_nobody_reaches_is_told(client):
    """Exit code 4, and nothing changes."""
    run = interrupted(client)
    entry = client.index / run / "run.json"
    told = json.loads(entry.read_text())
    told["host"] = {**told["host"], "name": "gone", "address": "127.0.0.1", "port": 1, "user": "nobody"}
    entry.write_text(json.dumps(told))
    seen = client.run("recover", run)
    assert seen.returncode == 4, seen.stdout + seen.stderr
