"""What holds secrets leaves no core dump. The witness is /proc/PID/limits."""

import os
import resource
import signal
from pathlib import Path

import pytest
from testbed.client import channel_to, missing, processes_of, until

from launcher.values.host import Host

SCRIPT = """
import os, time
print("begun", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
"""
OFF = "1"


def limit_of(pid):
    """The soft limit of a process's core dumps."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return next(line.removeprefix("Max core file size").split()[0] for line in lines if "core file" in line)


def children_of(pid):
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def no_limit():
    """As `ulimit -c unlimited` in a shell."""
    resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def begun(client):
    """The folder of the run once its training has printed a line."""
    logs = list(client.home.glob(".launch/runs/*/record/0002/log.txt"))
    return logs[0].parents[2] if logs and logs[0].read_bytes() else None


@pytest.mark.parametrize(
    ("words", "of_training"),
    [pytest.param((), "unlimited", marks=pytest.mark.long), (("-s", "A_KEY"), OFF)],
    ids=["none", "one"],
)
def test_only_a_training_without_secrets_leaves_one(client, words, of_training):
    """The client, both agents and the keeper never; a training as the shell has it, unless it has a secret."""
    if resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY and os.geteuid() != 0:
        missing("the limit of core dumps is fixed here")
    client.variables["A_KEY"] = "value-of-it"
    client.script(SCRIPT)
    launch = client.start(*words, "--", "python", "train.py", preexec_fn=no_limit)
    run = until(lambda: begun(client), "the training's first line")
    trainings = [pid for pid in processes_of(run) if b"train.py" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    others = {launch.pid, *children_of(launch.pid), *processes_of(run)} - set(trainings)
    limits = {limit_of(pid) for pid in others}
    assert len(others) == 4
    assert limits == {OFF}
    assert [limit_of(pid) for pid in trainings] == [of_training]
    launch.send_signal(signal.SIGTERM)
    (run / "work" / "code" / "go").touch()
    launch.communicate()


def test_an_agent_leaves_none_whatever_its_login_allows(tmp_path):
    """Over SSH no client turns it off before."""
    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        with channel_to(Host(name="local", root=str(tmp_path / "root"))) as channel:
            channel.call("ping")  # the agent has become what it is
            assert limit_of(channel._link._process.pid) in (OFF, "0")
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
