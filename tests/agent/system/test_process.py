"""Who is who on a host, and the one place that sends signals: nothing waits for ever, nothing strange is signalled."""

import errno
import os
import re
import signal
import subprocess
import sys

import pytest
from testbed.client import is_gone, until

from launcher.agent.system import process

BSD = """\
    1     0 Ss   Fri Nov 20 08:00:00 2026
  700     1 S+   Fri Nov 20 09:01:02 2026
  701   700 Z    Fri Nov 20 09:01:03 2026
  702   700 R+   Fri Nov 20 09:01:04 2026
"""


def test_a_mac_listing_is_read_without_the_ps_that_made_it():
    """A `ps` is its own caller's child: seen as one, its caller would wait for it for ever."""
    found = process.read_listing(BSD, without=702)
    assert [(one.pid, one.parent, one.letter) for one in found] == [
        (1, 0, "S"),
        (700, 1, "S"),
        (701, 700, "Z"),
    ]
    assert found[1].start == "Fri Nov 20 09:01:02 2026"


ENDS_ITS_OWN = """
import subprocess
from launcher.agent.system import process
process.IS_LINUX = False
tree = subprocess.Popen(["sh", "-c", "sleep 1000 & echo $!; wait"], stdout=subprocess.PIPE, text=True)
print(tree.stdout.readline().strip(), flush=True)
process.end(process.own_descendants, "descendant", 0.0)
"""


def test_where_there_is_no_proc_a_tree_is_ended_all_the_same():
    """With the `ps` that a Mac has: our children and theirs are ended, and then there are none to wait for."""
    if subprocess.run(["ps", "-axo", "lstart="], capture_output=True, check=False).returncode != 0:
        pytest.skip("this machine has no ps with BSD options")
    done = subprocess.run(
        [sys.executable, "-c", ENDS_ITS_OWN], capture_output=True, text=True, timeout=60, check=True
    )
    assert is_gone(int(done.stdout))


def test_what_cannot_be_ended_is_named_and_waited_for_no_longer(monkeypatch):
    """A process in the kernel's hands, or of another user by now, holds nobody up."""
    monkeypatch.setattr(process, "KILL_WAIT_S", 0.2)
    stuck = process.Process(os.getpid(), 1, "another start", "D")  # never signalled: it is not who it was
    proofs = process.end(lambda: [stuck], "descendant", 0.0)
    assert proofs == [{"pid": os.getpid(), "start": "another start", "proof": "descendant", "state": "D"}]


def test_another_users_process_is_not_ours_to_signal(monkeypatch):
    """A setuid program that a job started refuses our signal, which is no crash of ours."""
    child = subprocess.Popen(["sleep", "1000"])
    try:
        target = process.find(child.pid)

        def refuse(_pid, _number):
            raise PermissionError

        monkeypatch.setattr(os, "kill", refuse)
        monkeypatch.setattr(signal, "pidfd_send_signal", refuse)
        assert process.send(target, signal.SIGTERM) is False
    finally:
        monkeypatch.undo()
        child.kill()
        child.wait()


def test_a_process_that_hides_is_none(monkeypatch):
    """Under hidepid the file of another user's process refuses to be opened."""

    def refuse(*_words, **_more):
        raise PermissionError

    monkeypatch.setattr("builtins.open", refuse)
    assert process.find(1) is None


def test_a_reused_pid_is_never_signalled():
    """The start time is compared in the moment before the signal."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    try:
        real = process.find(child.pid)
        assert process.send(process.Process(real.pid, real.parent, "another", "S"), signal.SIGKILL) is False
        assert child.poll() is None
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("program", "first_word", "is_server"),
    [
        ("screen", "SCREEN", True),
        ("screen", "screen", False),
        ("tsp", "tsp", True),
        ("zellij", "zellij", True),
        ("tmux", "tmux", False),
        ("sleep", "SCREEN", False),
    ],
)
def test_a_server_in_the_background_is_known_by_its_name_and_left_with_all_below_it(
    tmp_path, program, first_word, is_server
):
    """GNU screen's own name is an ordinary word, so that its server's capitals count; tmux's server names itself."""
    (tmp_path / program).symlink_to("/bin/sh")
    with subprocess.Popen([first_word, "-c", "sleep 1000; true"], executable=tmp_path / program) as started:
        try:
            until(lambda: [one for one in below(started.pid) if one.name == "sleep"], "its child")
            listed = {one.pid for one in process.own_descendants()}
            assert (started.pid in listed) != is_server
            assert any(one.pid in listed for one in below(started.pid)) != is_server
            assert [one.pid for one in process.servers_below(os.getpid())] == [started.pid] * is_server
        finally:
            for one in (process.find(started.pid), *below(started.pid)):
                process.send(one, signal.SIGKILL)


def below(pid):
    return [one for one in process.table() if one.parent == pid]


TAKES_A_PID = """
import os, signal, subprocess
from launcher.agent.system import process

def start():
    return subprocess.Popen(["sleep", "1000"])

def find(pid):
    global other
    found = real(pid)
    first.kill()
    first.wait()
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(pid - 1))
    other = start()
    return found

first, other, real = start(), None, process.find
process.find = find
said = process.send(real(first.pid), signal.SIGKILL)
print(said, other.pid == first.pid, os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOHANG))
other.kill()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a namespace of its own needs root")
def test_a_process_that_takes_the_pid_between_check_and_signal_is_never_signalled():
    """Without a descriptor of the process there is a moment for that, however short."""
    words = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", TAKES_A_PID]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "False True None\n"


def test_without_descriptors_a_process_is_signalled_by_its_pid(monkeypatch):
    """An older kernel, a sandbox that forbids the call, or an agent whose descriptors are used up."""

    def refuse(_pid):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(os, "pidfd_open", refuse)
    with subprocess.Popen(["sleep", "1000"]) as child:
        assert process.send(process.find(child.pid), signal.SIGTERM) is True
        assert child.wait() == -signal.SIGTERM


STAYS_AWAKE = """
import sys
from launcher.agent.system import process
sys.platform = sys.argv[1]
process.keep_awake()
"""


@pytest.mark.parametrize("platform", ["darwin", "linux"])
def test_a_mac_is_kept_awake_for_as_long_as_a_run_has_its_keeper(tmp_path, platform):
    """By its own program, which is told whom to wait for; a host without it is fine."""
    log, program = tmp_path / "log", tmp_path / "caffeinate"
    program.write_text(f'#!/bin/sh\necho "$*" "$PPID" >{log}.part && mv {log}.part {log}\n')
    program.chmod(0o755)
    for path in (f"{tmp_path}{os.pathsep}{os.environ['PATH']}", os.environ["PATH"]):
        words = [sys.executable, "-c", STAYS_AWAKE, platform]
        subprocess.run(words, env={**os.environ, "PATH": path}, check=True)
    if platform == "linux":
        assert not log.exists()
    else:
        until(log.exists, "the program")
        assert re.fullmatch(r"-i -w (\d+) (\1|1)\n", log.read_text())
