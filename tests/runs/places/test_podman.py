"""What differs in containers of Podman: a boot starts none, and its images have longer names. Witness: Debian's docker client."""

import json

import pytest
from testbed.client import until
from testbed.engine import BASE

pytestmark = [pytest.mark.testbed, pytest.mark.long]

STEPS = """
import os, time
import launcher_worker as worker
resumed = worker.resume_from()
begin = int(open(os.path.join(resumed, "step")).read()) if resumed else 0
for step in range(begin + 1, 2001):
    time.sleep(0.05)
    worker.log(step, loss=1.0 / step)
    worker.save(step, lambda folder: open(os.path.join(folder, "step"), "w").write(str(step)))
    if os.path.exists("enough"):
        break
worker.done(step)
"""


@pytest.fixture
def box(client, rootless_podman):
    """The machine with rae's Podman, known to a client as `dock`."""
    table = rootless_podman.machine.table("dock", user="rae", runtime="docker", engine="podman")
    (client.project / "launch.toml").write_text(f'{table}\n[hosts.dock.build]\nbase = "{BASE}"\n')
    (client.project / "job.toml").write_text('name = "train"\ncommand = ["python", "train.py"]\n')
    client.script(STEPS)
    yield rootless_podman
    rootless_podman.clear()
    rootless_podman.machine.ssh("rm", "-rf", ".launch/runs", user="rae")


def state(client, run):
    rows = json.loads(client.ok("ps", "--json", "--host", "dock"))["runs"]
    return next(row for row in rows if row["run"] == run)


def saved(box, run):
    """The steps of its checkpoints, by plain ssh."""
    names = box.machine.ssh("ls", f".launch/runs/{run}/work/checkpoints", user="rae", check=False).split()
    return sorted(int(name.removeprefix("step-")) for name in names)


def test_after_a_boot_a_run_continues_by_attach(client, box):
    """The machine loses its power. Podman starts no container of ours at a boot; `launch attach` does, and no step is lost."""
    run = client.detached("--host", "dock", "--job", "./job.toml")
    until(lambda: len(saved(box, run)) > 1, "two checkpoints")
    box.machine.kill()
    box.machine.up()
    box.wait()
    before = saved(box, run)[-1]
    assert box.docker("ps", "-q") == ""
    row = state(client, run)
    assert (row["state"], row["attempt"]) == ("interrupted", 1)
    box.machine.ssh("touch", f".launch/runs/{run}/work/code/enough", user="rae")
    assert "succeeded" in client.seen("attach", run)
    row = state(client, run)
    assert (row["state"], row["attempt"]) == ("succeeded", 2)
    assert row["step"] > before


def test_a_killed_program_is_started_again_by_podman(client, box):
    """Its service need not run for that: each container has a watcher of its own."""
    run = client.detached("--host", "dock", "--job", "./job.toml")
    until(lambda: len(saved(box, run)) > 1, "two checkpoints")
    pid = json.loads(box.docker("inspect", f"launch-{run}"))[0]["State"]["Pid"]
    box.stop_gracefully()
    box.machine.enter("kill", "-KILL", str(pid))
    before = saved(box, run)[-1]
    until(lambda: saved(box, run)[-1] > before + 3, "more checkpoints, without Podman's service")
    box.start()
    row = state(client, run)
    assert (row["state"], row["attempt"]) == ("running", 2)
    assert "stopped" in client.ok("stop", "--now", run)


def test_the_images_of_podman_are_listed_and_pruned(client, box):
    """Podman calls them docker.io/launcher/…; launch shows and removes them by the names that it gave."""
    client.ok("image", "build", "--host", "dock", "--job", "./job.toml")
    (image,) = json.loads(client.ok("image", "list", "--host", "dock", "--json"))["images"]
    assert image["name"].startswith("launcher/cpu:")
    assert image["name"] in box.docker("images", "--format", "{{.Repository}}:{{.Tag}}")
    client.ok("image", "prune", "--host", "dock")
    assert "launcher/cpu" not in box.docker("images")


def test_exec_runs_in_the_container(client, box):
    """With its exit code, while the training goes on, and in a new container once it has ended."""
    run = client.detached("--host", "dock", "--job", "./job.toml")
    until(lambda: saved(box, run), "a checkpoint")
    done = client.run("exec", run, "--", "sh", "-c", "ls /proc/1/root/run/.containerenv; exit 3")
    assert (done.returncode, done.stdout) == (3, "/proc/1/root/run/.containerenv\n"), done.stderr
    client.ok("stop", "--now", run)
    assert client.run("exec", run, "--", "sh", "-c", "exit 4").returncode == 4
