"""Three real shells on a terminal: a person types, presses Tab, and sees what the line becomes."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import termios
import time

import pyte
import pytest
from testbed.client import LAUNCH, missing, until
from testbed.entries import know
from testbed.tables import mostly_long

pytestmark = pytest.mark.slow(reason="starts real shells and a client for each word that they complete")
LIVE, ENDED, OLD = "261122-embed-k3f1x1", "261121-sft-lab777", "261120-sft-aaa9w2"
SHELLS = {
    "bash": (["bash", "--norc", "-i"], 'PS1="$ "; eval "$(launch --show-completion)"'),
    "zsh": (
        ["zsh", "-f", "-i"],
        'PS1="$ "; autoload -Uz compinit; compinit -u; eval "$(launch --show-completion)"',
    ),
    "fish": (["fish", "--no-config", "-i"], "launch --show-completion | source"),
}
INSTALLED = {"bash": ["bash", "-i"], "zsh": ["zsh", "-i"], "fish": ["fish", "-i"]}
LINES, COLUMNS = 40, 120


class Shell:
    """A shell on a terminal, in the project's folder, with our completion."""

    def __init__(self, words, show, folder, env):
        self.screen = pyte.Screen(COLUMNS, LINES)
        self.stream = pyte.ByteStream(self.screen)
        self.said = b""
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(words[0], words, env)  # noqa: S606 - a shell, in a terminal of its own
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.type(f"{show}; echo re''ady\n")
        until(lambda: self.says("ready"), "the shell")

    def type(self, keys):
        """Press keys."""
        os.write(self.terminal, keys.encode())

    def says(self, text):
        """Read what there is; return whether a text has been printed."""
        while select.select([self.terminal], [], [], 0.05)[0]:
            new = os.read(self.terminal, 1 << 16)
            self.said += new
            self.stream.feed(new)
        return text.encode() in self.said

    def line(self, keys):
        """Type keys; return the words that the line has become, as the shell itself prints them."""
        self.said = b""
        self.type(f"{keys}\x01printf '<%s>' \nprintf '[%s]' end\n")
        until(lambda: self.says("[end]"), "the line")
        return re.findall(r"<([^<>%]*)>", self.said.decode())

    def seen(self, keys, *texts):
        """Type keys; return the lines of the screen once all of these texts are on it."""
        self.type(keys)
        until(lambda: self.says("") and all(text in "\n".join(self.screen.display) for text in texts), keys)
        return [line.rstrip() for line in self.screen.display]

    def close(self):
        """End the shell."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)


@pytest.fixture
def local_copies(client):
    """The records of three runs, the newest of them live."""
    for order, (run, state) in enumerate([(OLD, "succeeded"), (ENDED, "failed"), (LIVE, "running")]):
        folder = client.runs / run / "0001"
        folder.mkdir(parents=True)
        know(run, client.runs, home=client.home, order=order + 1, launched=time.time() - 7300)
        (folder / "state.json").write_text(json.dumps({"state": state}))
    return client.runs


@pytest.fixture(params=SHELLS)
def name(request):
    """A shell that is here."""
    if shutil.which(request.param) is None:
        missing(f"no {request.param} here: apt-get install {request.param}")
    return request.param


@pytest.fixture
def start(client, local_copies):
    """Start a shell on a terminal, with `launch` on its PATH. All of them end with the test."""
    (client.project / "launch").write_text(f'#!/bin/sh\nexec {shlex.join(LAUNCH)} "$@"\n')
    (client.project / "launch").chmod(0o755)
    env = {**client.env, "PATH": f"{client.project}:{client.env['PATH']}", "TERM": "xterm"}
    for variable in ("COLUMNS", "LINES", "ZDOTDIR", "XDG_CONFIG_HOME"):
        env.pop(variable, None)
    with contextlib.ExitStack() as stack:

        def begin(words, show):
            shell = Shell(words, show, client.project, env)
            stack.callback(shell.close)
            return shell

        yield begin


@pytest.fixture
def shell(name, start):
    shell = start(*SHELLS[name])
    shell.name = name
    return shell


@mostly_long("name", SHELLS, ci=(0,), indirect=True)
def test_a_verb_gets_the_one_run_that_it_can_act_on(shell):
    """Whatever else is on record."""
    assert shell.line("launch stop 26\t") == ["launch", "stop", LIVE]


@mostly_long("name", SHELLS, ci=(0,), indirect=True)
def test_a_run_is_found_by_the_end_or_the_start_of_its_last_part_or_its_name(shell):
    """Also for several, and before a path; no space follows the colon."""
    assert shell.line("launch logs a9w2\t") == ["launch", "logs", "aaa9w2"]
    assert shell.line("launch rm lab7\taaa\t") == ["launch", "rm", "lab777", "aaa9w2"]
    assert shell.line("launch cp k3f\tout") == ["launch", "cp", "k3f1x1:out"]
    by_name = "k3f1x1" if shell.name == "bash" else LIVE
    assert shell.line("launch logs emb\t") == ["launch", "logs", by_name]


@mostly_long("name", SHELLS, ci=(0,), indirect=True)
def test_keys_and_values_of_set_are_completed(shell):
    """In every way to write them; no space follows the equals sign."""
    assert shell.line("launch --set batch.glo\t32") == ["launch", "--set", "batch.global=32"]
    assert shell.line("launch --set method=l\t") == ["launch", "--set", "method=lora"]
    assert shell.line("launch --set=guard=w\t") == ["launch", "--set=guard=warn"]
    assert shell.line("launch --job sft --set settings.lora_r\t8") == [
        "launch", "--job", "sft", "--set", "settings.lora_rank=8",
    ]  # fmt: skip


@mostly_long("name", SHELLS, ci=(0,), indirect=True)
def test_several_runs_are_listed_newest_first_with_what_they_are(shell):
    """Down the columns. Bash has plain words."""
    screen = shell.seen("launch logs 26112\t\t", LIVE, ENDED, OLD)
    places = {
        (line.index(run), row): run
        for row, line in enumerate(screen)
        for run in (LIVE, ENDED, OLD)
        if run in line and "launch" not in line
    }
    assert [places[place] for place in sorted(places)] == [LIVE, ENDED, OLD]
    text = "\n".join(screen)
    assert bool(re.search(rf"{OLD}\W+succeeded +sft +2 h ago", text)) == (shell.name != "bash")


@mostly_long("name", SHELLS, ci=(0,), indirect=True)
def test_broken_files_show_nothing_and_hide_nothing_else(client, shell):
    """A torn record, a project's file that is not TOML; the line stays as it was typed."""
    (client.project / "launch.toml").write_text("hosts = [")
    (client.runs / ENDED / "0001" / "state.json").write_text("{")
    (client.index / OLD / "run.json").write_text("[]")
    assert shell.line("launch --host zz\t") == ["launch", "--host", "zz"]
    assert shell.line("launch stop k\t") == ["launch", "stop", "k3f1x1"]
    assert b"Traceback" not in shell.said
    assert b"launch.toml" not in shell.said


def test_what_is_installed_completes_in_the_next_shell_from_the_first_tab(name, start):
    """`launch --install-completion`, once."""
    start(SHELLS[name][0], "launch --install-completion")
    later = start(INSTALLED[name], "true")
    assert later.line("launch stop k\t") == ["launch", "stop", "k3f1x1"]
    assert later.line("launch --set batch.glo\t8") == ["launch", "--set", "batch.global=8"]
