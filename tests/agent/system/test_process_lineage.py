"""What a run has handed over: by a table of lineages, and really, to a spooler and to tmux."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.client import is_gone, missing, orphan, until
from testbed.spooler import Spooler
from testbed.toy import Toy, recorded_run

from launcher.agent.host import leftovers
from launcher.agent.liveness import ownership
from launcher.agent.record.files import write_durably
from launcher.agent.system import client_program, process, process_lineage, token_processes
from launcher.agent.system.process_lineage import ProcessEntry

FLAGS = {
    "*": {"token": "ours"},
    "+": {"token": "of another run"},
    "@": {"uid": 0},
    "k": {"is_keeper": True},
    "z": {"letter": "Z"},
    "x": {"is_exiting": True},
    "!": {"server": "tmux"},
    "?": {"start": ""},
    "a": {"adopter": (11, "1")},
    "b": {"adopter": (12, "1")},
    "e": {"is_exec": True, "attended_by": 12},
}
"""`*` has the run's token, `+` another run's, `@` is another user's, `k` a keeper or an agent, `z` a zombie, `x` is ending, `!` is
a server in the background, `?` is hidden from us, `a` has the second in its line as its run's adopter, `b` the third, `e` belongs to a command that the third in its line attends to."""
LINEAGES = {
    "python:*": None,
    "python:* sh:*": None,
    "python:* agent:*k keeper:*k": None,
    "keeper:*k serve sshd:@": None,
    "python:* agent:*k keeper:*k serve sshd:@ sshd:@": None,
    "python:* agent:*k serve launch bash tmux:!": None,
    "inner:* agent:+k keeper:+k": None,
    "python:*e sh:*e serve sshd:@": None,
    "sh:*e slurmstepd:@": "slurmstepd",
    "python:* systemd": None,
    "systemd:*": None,
    "python:* sudo:@ sh:*": None,
    "python:* titled python:*": None,
    "worker:* titled agent:*k keeper:*k": None,
    "worker:* python:z": None,
    "worker:* python:x": None,
    "bash:* slurmstepd:@": "slurmstepd",
    "python:* python:* bash:* slurmstepd:@ slurmd:@": "slurmstepd",
    "sh:* atd:@ atd:@": "atd",
    "bash:* sshd:@": "sshd",
    "python:* python:z slurmstepd:@": "slurmstepd",
    "python:* spooler systemd": "spooler",
    "python:*a slurmstepd:@ sshd:@": None,
    "python:*b spooler slurmstepd:@": "spooler",
    "python:* slurmstepd:@": "slurmstepd",
    "python:* spooler bash tmux:!": "spooler",
    "python:* systemd:@": "systemd",
    "python:* python:+": "python",
    "bash:* root:?": "another user's program",
    "tmux:*!": "tmux",
    "python:* bash:* tmux:*!": "tmux",
    "python:* bash:* tmux:*! agent:*k keeper:*k": "tmux",
    "python:* bash tmux:*!": "tmux",
    "sleep:* tmux:! agent:*k": "tmux",
    "python:* bash:* tmux:*! slurmstepd:@": "tmux",
}
"""Processes, each below the next, the last below init; and what the first was handed over to."""


@pytest.mark.parametrize("line", LINEAGES)
def test_a_process_was_handed_over_if_nothing_of_its_run_is_at_the_head_of_its_line(line):
    """Who adopts orphans is above everybody, and what is above a keeper was there before the run."""
    words = line.split()
    table = [entry_of(word, 10 + place, place == len(words) - 1) for place, word in enumerate(words)]
    found = process_lineage.receiver_of(
        table[0], process_lineage.by_pid([entry for entry in table if entry.start])
    )
    assert (process_lineage.words_of(found).rpartition(" (pid")[0] if found else None) == LINEAGES[line]


def entry_of(word, pid, is_last):
    """An entry of the table, below the pid after it or below init."""
    name, _, flags = word.partition(":")
    entry = ProcessEntry(pid, 1 if is_last else pid + 1, "1", "S", 1000, name=name)
    for flag in flags:
        entry = entry._replace(**FLAGS[flag])
    return entry


@pytest.fixture
def spooler(tmp_path):
    """A spooler that was started outside of any run."""
    with Spooler(tmp_path) as started:
        yield started


@pytest.fixture
def start(tmp_path, spooler):
    """Start two processes with more variables: one that a spooler starts for a run, one that init adopts. Return their pids."""
    left = []

    def begin(**more):
        variables = {**os.environ, **more}
        lines, _ = spooler.submit(["sleep", "1000"])
        words = [sys.executable, "-c", lines + "print(job)"]
        job = int(subprocess.run(words, env=variables, stdout=subprocess.PIPE, check=True).stdout)
        left.append(orphan(["sleep", "1000"], variables, tmp_path / "output"))
        until(lambda: all(b"sleep" in cmdline(pid) for pid in (job, *left)), "both")
        return job, left[0]

    yield begin
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_spoolers_job_has_the_token_and_is_not_ended(tmp_path, spooler, start):
    """By a sweep, which names it; what init has adopted of the same run is ended."""
    run = recorded_run(tmp_path, "0101-spooled-aaaa", "succeeded")
    job, left = start(LAUNCH_TOKEN=f"token-of-{run.id}")
    expected = ownership.Owner("handed-over", run.id, spooler.title)
    assert ownership.owners_of(str(tmp_path), [job]) == {job: expected}
    items = {item["name"]: item for item in leftovers.sweep(str(tmp_path), dry_run=False)}
    assert is_gone(left)
    assert not is_gone(job)
    assert items[f"pid {left} (sleep 1000)"]["did"] == "ended"
    item = items[f"pid {job} (sleep 1000)"]
    assert (item["kind"], item["did"], item["receiver"]) == ("handed-over", "left", spooler.title)
    assert item["why"] == f"handed over to {spooler.title}: not ended"


def test_a_spoolers_job_does_not_end_with_the_command_that_gave_it(start):
    """The guard of a command of `launch exec` ends the rest."""
    job, left = start(LAUNCH_EXEC="a spooled command.1234")
    process.end(
        lambda: token_processes.with_token("a spooled command.1234", client_program.MARK), "token", 0.0
    )
    assert is_gone(left)
    assert not is_gone(job)


ADOPTED = """
import ctypes, os, subprocess, sys, time
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # a subreaper, as slurmstepd
sys.path.insert(0, sys.argv[1])
subprocess.run([sys.executable, "-c", '''
import os, subprocess, sys
sys.path.insert(0, sys.argv[1])
from launcher.agent.system import token_processes
os.environ.update({"LAUNCH_TOKEN": sys.argv[2], token_processes.OF_ADOPTER: token_processes.words_of_adopter()})
program = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL, start_new_session=True)
print(program.pid, os.environ[token_processes.OF_ADOPTER], flush=True)
''', *sys.argv[1:]])
sys.stdin.read()
"""


def test_what_a_subreaper_has_adopted_is_still_the_runs(tmp_path):
    """A keeper that was killed under Slurm's step daemon leaves its training to that. A second one must not start beside it."""
    token = f"adopted {tmp_path}"
    words = [sys.executable, "-c", ADOPTED, str(Path(token_processes.__file__).parents[3]), token]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as subreaper:
        left, adopter = subreaper.stdout.readline().split()
        assert int(adopter.split(b".")[0]) == subreaper.pid
        until(lambda: process.find(int(left)).parent == subreaper.pid, "the orphan")
        try:
            assert int(left) in {one.pid for one in token_processes.with_token(token)}
        finally:
            os.kill(int(left), signal.SIGKILL)


@pytest.mark.parametrize(
    ("said", "is_ours"),
    [
        (
            {"ENGINE_CONFIG1": '{"env":["A=\\"","LAUNCH_TO', "ENGINE_CONFIG2": 'KEN=TOKEN","B=1"]}'},
            True,
        ),
        ({"ENGINE_CONFIG1": '{"env":["LAUNCH_TOKEN=\\q"]}'}, False),
        ({}, False),
    ],
)
def test_what_waits_for_a_container_is_the_runs_as_its_command_is(tmp_path, said, is_ours):
    """Apptainer's parent has the variables in what it was told, by 1.4.5 in pieces, and only there. Its agent is killed, and init has it."""
    token = f"in <{tmp_path.name}> & out"
    escaped = token.replace("<", r"\u003c").replace("&", r"\u0026")
    told = {name: text.replace('TOKEN"', f'{escaped}"') for name, text in said.items()}
    words = ["sh", "-c", f"LAUNCH_TOKEN='{token}' sleep 1000 & wait"]
    parent = orphan(words, {"PATH": os.environ["PATH"], **told}, tmp_path / "output")
    (child,) = until(lambda: [one for one in process.descendants(parent) if one.name == "sleep"], "it")
    try:
        found = {one.pid for one in token_processes.with_token(token)}
        assert found == ({parent, child.pid} if is_ours else set())
    finally:
        os.kill(child.pid, signal.SIGKILL)  # the shell ends with it


TMUX = """
import subprocess
subprocess.run(["tmux", "-f", "/dev/null", "new-session", "-d", "sleep 1000"], check=True)
subprocess.Popen(["sleep", "2000"], start_new_session=True)
"""


def test_tmux_outlives_its_run_with_all_in_it(tmp_path, monkeypatch):
    """What its user has put in the background on purpose; the rest of the run is ended, in a session of its own or not."""
    if shutil.which("tmux") is None:
        missing("there is no tmux")
    monkeypatch.setenv("TMUX_TMPDIR", str(tmp_path))
    toy = Toy(tmp_path)
    write_durably(toy.run.token, "toy in tmux")  # no other test's: the sweep is of this machine
    toy.plan(variables={"TMUX_TMPDIR": str(tmp_path)})
    toy.script(TMUX)
    try:
        state = toy.ended()
        assert state["state"] == "succeeded", state
        (server,) = pids_of("tmux", "display-message", "-p", "#{pid}")
        (inside,) = pids_of("tmux", "list-panes", "-a", "-F", "#{pane_pid}")
        assert b"LAUNCH_TOKEN=toy in tmux" in environ(inside)
        items = leftovers.sweep(str(tmp_path / ".launch"), dry_run=False)
        assert {item["kind"] for item in items} == {"handed-over"}
        assert {item["receiver"] for item in items} == {f"tmux (pid {server})"}
        assert {int(item["name"].split()[1]) for item in items} == {server, inside}
        assert not is_gone(server)
        assert not is_gone(inside)
        assert pids_of("pgrep", "-f", "^sleep 2000$") == []
    finally:
        subprocess.run(["tmux", "kill-server"], check=False)
        toy.clear_away()


def pids_of(*words):
    return list(map(int, subprocess.run(words, capture_output=True, text=True, check=False).stdout.split()))


def cmdline(pid):
    with open(f"/proc/{pid}/cmdline", "rb") as file:
        return file.read()


def environ(pid):
    with open(f"/proc/{pid}/environ", "rb") as file:
        return file.read().split(b"\0")
