"""A command as Apptainer starts it: which of its processes a signal goes to. The kernel is asked whom it has reached."""

import os
import signal
import sys

import pytest
from testbed.client import until

from launcher.agent.attempt.training_command import Command, CommandStart

CATCHES = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, lambda number, _: open(sys.argv[1] + ".told", "w").close())
open(sys.argv[1] + ".new", "w").write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
while os.getppid() == int(sys.argv[2]):
    time.sleep(0.02)
"""
"""Says that it was told to end, and ends with its parent."""
TELLS = """
import os, signal, subprocess, sys, time
mine = str(os.getpid())
signal.signal(signal.SIGTERM, lambda number, _: open("parent.told", "w").close())
subprocess.Popen([sys.executable, "catches.py", "keeper", mine], env={"PATH": os.environ["PATH"]})
inside = subprocess.Popen(INSIDE)
open("ready", "w").close()
while not os.path.exists("enough"):
    time.sleep(0.02)
inside.kill()
inside.wait()
"""
"""As Apptainer's parent: beside what it starts in the image it has a process that holds the image, without variables."""
STARTS_RANKS = 'python3 catches.py rank "$$" & wait'


@pytest.fixture
def started(tmp_path, monkeypatch):
    """A function that starts words in this stand-in of Apptainer for several ranks, and waits for its files."""
    monkeypatch.chdir(tmp_path)
    commands = []

    def start(inside, *files, **variables):
        (tmp_path / "catches.py").write_text(CATCHES)
        (tmp_path / "apptainer.py").write_text(f"INSIDE = {inside!r}\n{TELLS}")
        kept = {"PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}", **variables}
        words = [sys.executable, "apptainer.py"]
        command = Command(CommandStart(words, str(tmp_path), kept, ranks=2, is_in_image=True))
        commands.append(command)
        until(lambda: all((tmp_path / name).exists() for name in ("ready", "keeper", *files)), "its start")
        return command

    yield start
    (tmp_path / "enough").touch()
    for command in commands:
        until(lambda ended=command: ended.reap() is not None, "its end")
        command.output.close()


def told(folder):
    return sorted(path.stem for path in folder.glob("*.told"))


def test_ranks_in_an_image_are_told_and_what_holds_the_image_is_not(started, tmp_path):
    """They are the children of the one that has the run's variables; torchrun, which would end them soon, is not told."""
    command = started(["sh", "-c", STARTS_RANKS], "rank", LAUNCH_TOKEN="run:1")
    (proof,) = command.send(signal.SIGTERM)
    assert proof["pid"] == int((tmp_path / "rank").read_text())
    until(lambda: told(tmp_path), "the signal")
    assert told(tmp_path) == ["rank"]


@pytest.mark.parametrize("variables", [{"LAUNCH_TOKEN": "run:1"}, {}])
def test_a_program_in_an_image_that_has_no_ranks_below_is_told_by_apptainer(started, tmp_path, variables):
    """So is one whose variables do not show: never what holds the image."""
    command = started(["sleep", "1000"], **variables)
    (proof,) = command.send(signal.SIGTERM)
    assert proof["pid"] == command.pid
    until(lambda: told(tmp_path), "the signal")
    assert told(tmp_path) == ["parent"]
