"""The agent as a container's first program, without a container: what it leaves with, and what the next one tells of it."""

import io
import json
import os
import signal
import subprocess
import sys
import zipfile

import pytest
from testbed.client import processes_of, until

from launcher.agent.record.files import read_json, write_durably
from launcher.agent.record.rundir import Run
from launcher.agent.training import keeper
from launcher.transport.agent_file import agent_file

TRAIN = "import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(1000)\n"


class Container:
    """A run, and an agent's file to make attempts of it."""

    def __init__(self, folder):
        self.started = []
        self.run = Run(str(folder / "runs" / "0101-x-aaaa"))
        self.agent = folder / "agent.pyz"
        self.agent.write_bytes(agent_file().data)
        self.run.make()
        os.makedirs(self.run.code)
        self.script(TRAIN)
        self.plan(command=["python3", "train.py"], attempts=9, restart=True, stop_grace_s=5)
        write_durably(self.run.token, "00")
        self.folder("prepare")

    def plan(self, **values):
        """Write the plan."""
        write_durably(self.run.plan, json.dumps(values))

    def script(self, text):
        """Write what the command runs."""
        with open(os.path.join(self.run.code, "train.py"), "w") as file:
            file.write(text)

    def folder(self, kind, state="resuming"):
        """Make a folder that somebody left."""
        folder = self.run.new_folder()
        write_durably(folder.attempt, json.dumps({"kind": kind}))
        folder.write_state(state)
        folder.release()

    def start(self):
        """Start the first program."""
        words = [sys.executable, "-I", str(self.agent), "contain", self.run.path]
        environment = {
            **os.environ,
            "HOME": self.run.home,
            "LAUNCH_HOST_ID": "h",
            "TMPDIR": "/tmp",
        }
        self.started.append(subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True))
        return self.started[-1]

    def begun(self):
        """Start it, and wait until its command runs; return it and its agent's pid."""
        before = len(self.run.numbers())
        started = self.start()
        until(lambda: len(self.run.numbers()) > before and self.last_state() == "running", "the attempt")
        until(lambda: os.path.exists(os.path.join(self.run.code, "pid")), "the command")
        return started, read_json(self.run.last().attempt)["agent"]["pid"]

    def last_state(self):
        """The state of the last folder."""
        return self.run.last().read_state().get("state")

    def previous(self):
        """What the last attempt tells of the one before."""
        return read_json(self.run.last().attempt)["previous"]


@pytest.fixture
def container(tmp_path):
    """A run that has been prepared."""
    one = Container(tmp_path)
    yield one
    for started in one.started:
        started.kill()
        started.wait()
        started.stderr.close()
    for pid in processes_of(tmp_path):
        os.kill(pid, signal.SIGKILL)


def test_how_an_agent_died_is_on_record_of_the_next_one(container):
    """Its signal and what was ended after it; the first program leaves as it did, and starts nothing again."""
    started, agent = container.begun()
    assert agent != started.pid
    os.kill(agent, signal.SIGKILL)
    assert started.wait(30) == 128 + signal.SIGKILL
    assert len(container.run.numbers()) == 2
    os.unlink(os.path.join(container.run.code, "pid"))
    again, _ = container.begun()
    told = container.previous()["container"]
    assert (told["signal"], told["exit"]) == (signal.SIGKILL, None)
    assert told["ended"], "the orphan's end is not on record"
    assert not os.path.exists(container.run.container_end)
    write_durably(container.run.wish, "cancel")
    assert again.wait(30) == 0


def test_a_first_program_that_was_killed_too_leaves_the_word_to_the_engine(container):
    """Nobody in there has seen it."""
    container.folder("attempt", "running")
    container.script("")
    assert container.start().wait(30) == 0
    assert container.previous()["container"] == "restarted; only the engine knows what ended it"


def test_a_shutdown_reaches_the_command_and_is_left_with_75(container):
    """SIGTERM without a wish: the next attempt knows that it was no crash."""
    for number in (signal.SIGTERM, signal.SIGINT):
        started, _ = container.begun()
        started.send_signal(number)
        assert started.wait(30) == 75
        os.unlink(os.path.join(container.run.code, "pid"))
    assert container.previous()["container"]["exit"] == 75


def test_a_hundred_deaths_before_the_command_are_the_last(container):
    """It leaves with 0, so that the engine brings nothing back; a client's contact begins the count anew."""
    for _ in range(keeper.MAX_FAILURES):
        container.folder("attempt", "preparing")
    number = len(container.run.numbers())
    started = container.start()
    assert started.wait(30) == 0
    assert "100 agents in a row died" in started.stderr.read()
    assert len(container.run.numbers()) == number
    container.folder("contact")
    container.script("")
    assert container.start().wait(30) == 0
    assert container.last_state() == "succeeded"


def test_agents_that_die_before_they_make_a_folder_are_counted_too(container):
    """Whatever it is that they cannot even begin with."""
    with (
        zipfile.ZipFile(io.BytesIO(agent_file().data)) as whole,
        zipfile.ZipFile(container.agent, "w") as part,
    ):
        for name in whole.namelist():
            is_broken = name.endswith("/supervise.py")
            part.writestr(name, "raise SystemExit(1)" if is_broken else whole.read(name))
    assert container.start().wait(30) == 1
    assert container.start().wait(30) == 1
    told = read_json(container.run.container_end)
    assert told["without_folder"] == 2
    write_durably(container.run.container_end, json.dumps({**told, "without_folder": keeper.MAX_FAILURES}))
    assert container.start().wait(30) == 0
    assert len(container.run.numbers()) == 1
