"""Checkpoints come home: one by its name or step, proven by its manifest; and the newest one while a run is followed."""

import hashlib
import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from testbed.client import until

pytestmark = pytest.mark.slow(reason="each test starts several clients")

STEPS = """
import os, time
import launcher_worker as worker
worker.resume_from()
for step in range(1, {steps} + 1):
    worker.log(step, loss=1.0 / step, eval_loss=abs(step - 3.0))
    worker.save(step, lambda folder: [open(os.path.join(folder, name), "wb").write(os.urandom({size})) for name in "ab"])
    while step >= {waits_at} and not os.path.exists({go!r}): time.sleep(0.05)
worker.done({steps})
"""


def saving(client, steps=6, waits_at=99, size=5000):
    """A training that saves at every step, and may wait at one."""
    client.script(STEPS.format(steps=steps, waits_at=waits_at, size=size, go=str(client.home / "go")))
    return ["--set", "keep_checkpoints=9", "--", "python", "train.py"]


def there(client, run):
    """The checkpoints on the host."""
    return client.home / ".launch" / "runs" / run / "work" / "checkpoints"


def digests(folder):
    """Names and digests of the files of a folder, by no code of ours."""
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*") if path.is_file()
    }  # fmt: skip


def test_one_checkpoint_comes_home_by_its_rank_or_step(client):
    """And nothing else; a second time nothing travels. One that is not there is told with those that are: a step that is no number, a path."""
    run = client.detached(*saving(client))
    client.ok("attach", run)
    home = client.runs / run / "checkpoints"
    for which in ("7", "../..", "/etc"):
        seen = client.run("pull", run, "--checkpoint", which)
        assert seen.returncode == 1
        assert "its steps: 1, 2, 3, 4, 5, 6; also last and best" in seen.stderr
    assert not home.exists()
    assert client.run("pull", run, "artifacts", "--checkpoint", "last").returncode == 2
    for which, step in (("last", 6), ("best", 3), ("2", 2)):
        out = client.ok("pull", run, "--checkpoint", which)
        assert out.split()[0].endswith(f"checkpoints/step-{step}")
        assert [path.name for path in home.iterdir()] == [f"step-{step}"]
        assert digests(home / f"step-{step}") == digests(there(client, run) / f"step-{step}")
        again = json.loads(client.ok("pull", run, "--checkpoint", which, "--json").splitlines()[-1])
        assert (again["files"], again["present"]) == ([], 3)
        assert f"step-{step}/a" in client.ok("ls", run)
        shutil.rmtree(home)


@pytest.mark.long
def test_a_transfer_that_was_killed_goes_on_and_its_folder_counts_only_when_whole(client):
    """The manifest comes last: without it, a folder here is no checkpoint."""
    run = client.detached(*saving(client, steps=1, size=30_000_000))
    client.ok("attach", run)
    puller = client.start("pull", run, "--checkpoint", "last")
    home = client.runs / run / "checkpoints" / "step-1"
    until(lambda: any((client.runs / run).glob(".parts/*")) or home.exists(), "the first bytes")
    puller.kill()
    puller.communicate()
    assert not (home / "manifest.json").exists()
    client.ok("pull", run, "--checkpoint", "last")
    assert digests(home) == digests(there(client, run) / "step-1")


def test_a_follower_keeps_the_newest_one_and_removes_the_one_before(client):
    """`ps` says how old it is; what the user added to it stays."""
    words = saving(client, steps=6, waits_at=2)
    follower = client.start("--set", "checkpoints=pull", *words)
    home = client.runs
    until(lambda: list(home.glob("*/checkpoints/step-2/manifest.json")), "the second checkpoint")
    (folder,) = home.glob("*/checkpoints/step-2")
    run = folder.parent.parent.name
    assert "checkpoint here" in client.ok("ps")
    (client.home / "go").touch()
    out, err = follower.communicate(timeout=100)
    assert follower.returncode == 0, out + err
    kept = sorted(path.name for path in (home / run / "checkpoints").iterdir())
    assert kept == ["step-6"]
    stay = next(line for line in (out + err).splitlines() if "checkpoints stay on" in line)
    assert "step-5 and 2 more (" in stay
    assert "step-6" not in stay  # it is here whole
    assert digests(home / run / "checkpoints" / "step-6") == digests(there(client, run) / "step-6")


@pytest.mark.long
def test_without_a_follower_none_is_kept_and_ps_says_so(client):
    """Nothing comes by itself."""
    run = client.detached("--set", "checkpoints=pull", *saving(client, steps=4, waits_at=1))
    until(lambda: (there(client, run) / "step-1" / "manifest.json").exists(), "a checkpoint on the host")
    assert "no checkpoint here yet" in next(line for line in client.ok("ps").splitlines() if run[-6:] in line)
    assert not (client.runs / run / "checkpoints").exists()
    (client.home / "go").touch()
    client.ok("attach", run)
    assert (client.runs / run / "checkpoints" / "step-4" / "manifest.json").exists()


@pytest.mark.long
def test_what_a_user_changed_in_a_kept_checkpoint_stays(client):
    """It is not removed when a newer one comes."""
    words = saving(client, steps=4, waits_at=1)
    follower = client.start("--set", "checkpoints=pull", *words)
    until(lambda: list(client.runs.glob("*/checkpoints/step-1/manifest.json")), "the first checkpoint")
    (mine,) = client.runs.glob("*/checkpoints/step-1")
    (mine / "notes.txt").write_text("mine")
    (client.home / "go").touch()
    out, err = follower.communicate(timeout=100)
    assert follower.returncode == 0, out + err
    assert (mine / "notes.txt").read_text() == "mine"
    assert (mine.parent / "step-4" / "manifest.json").exists()


def test_a_full_disk_here_is_a_note_and_the_run_goes_on(client, tmp_path):
    """Once, and the training is followed to its end."""
    if os.geteuid() != 0:
        pytest.skip("a small file system needs root")
    small = tmp_path / "small"
    small.mkdir()
    import subprocess

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(small)], check=True)
    try:
        shutil.rmtree(client.project)
        client.project = small
        words = saving(client, steps=3, size=3_000_000)
        done = client.run("--set", "checkpoints=pull", "--set", "pull_limit=0B", *words)
        assert "the newest checkpoint was not downloaded: no room" in done.stderr
        assert done.stderr.count("was not downloaded") == 1
        assert "succeeded" in done.stderr
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.mark.long
def test_a_follower_that_detaches_leaves_whole_checkpoints_only(client):
    """Ctrl-C while one comes: what is here without a manifest is no checkpoint."""
    words = saving(client, steps=3, waits_at=3, size=20_000_000)
    follower = client.start("--set", "checkpoints=pull", *words)
    until(lambda: list(client.runs.glob("*/.parts/*")), "the first bytes of a checkpoint")
    follower.send_signal(signal.SIGINT)
    out, err = follower.communicate(timeout=180)
    assert follower.returncode == 0, out + err
    for folder in client.runs.glob("*/checkpoints/step-*"):
        manifest = folder / "manifest.json"
        if manifest.exists():
            files = json.loads(manifest.read_text())["files"]
            here = {
                path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in Path(folder).iterdir()
            }
            assert all(here[name] == entry["sha256"] for name, entry in files.items())
    (client.home / "go").touch()
    client.ok("attach", "last")
