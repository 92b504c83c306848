"""Completion: a shell asks how a word may end, in its own protocol."""

import os
import pty
import select
import shlex
import shutil
import signal
import subprocess

import pytest
from testbed.client import LAUNCH, missing, until
from testbed.tables import mostly_long

pytestmark = pytest.mark.slow(reason="starts real shells and a client for each word that they complete")


@pytest.fixture
def ends(client):
    """What a word may end in, as bash asks: a line up to the cursor, the answers."""
    client.script(
        '[hosts.lab]\naddress = "x.invalid"\n[hosts.lambda]\naddress = "y.invalid"\n', "launch.toml"
    )
    (client.home / ".ssh").mkdir()
    (client.home / ".ssh" / "config").write_text("Host labour\n")

    def ask(line):
        words = line.split(" ")
        asked = {
            "_LAUNCH_COMPLETE": "complete_bash",
            "COMP_WORDS": "\n".join(words),
            "COMP_CWORD": str(len(words) - 1),
        }
        done = subprocess.run(
            LAUNCH,
            cwd=client.project,
            env={**client.env, **asked},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout.split()

    return ask


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        ("launch --ho", ["--host"]),
        ("launch --pro", ["--profile", "--probe"]),
        ("launch pro", ["probe", "profile"]),
        ("launch profile s", ["show"]),
        ("launch ps --h", ["--host", "--here", "--help"]),
        ("launch --host la", ["lab", "lambda", "labour"]),
        ("launch --profile a100", ["a100_40gb", "a100_80gb"]),
        ("launch profile show tit", ["titan_rtx"]),
        ("launch image show --profile tit", ["titan_rtx"]),
        ("launch --job s", ["sft"]),
        ("launch doctor la", ["lab", "lambda", "labour"]),
        ("launch resume la", []),
        ("launch resume last --s", ["--set"]),
        ("launch --precision f", ["fp16", "fp32"]),
        ("launch -- python --ho", []),
        ("launch --color zz --prec", ["--precision"]),
        ("launch --version --prec", ["--precision"]),
    ],
)
def test_a_word_is_completed(ends, line, answers):
    """Verbs, options of verbs and of the launch itself, and names; nothing behind `--`."""
    assert ends(line) == answers


def test_an_empty_word_is_a_verb(ends):
    """The launch's own options come when a dash is typed."""
    assert {"ps", "attach", "hosts"} <= set(ends("launch "))
    assert {"--host", "--detach", "--version", "--install-completion"} <= set(ends("launch -"))


def test_a_run_is_completed(client, ends):
    """By its id, or `last`."""
    run = client.detached("--host", "local", "--", "true")
    assert ends("launch attach ") == ["last", run]
    assert ends(f"launch logs {run[:3]}") == [run]


def test_a_file_that_is_wrong_ends_no_word_and_shows_nothing(client, ends):
    """The command itself will say it."""
    client.script("hosts = 3\n", "launch.toml")
    assert ends("launch --host l") == []


@pytest.fixture
def installed(client):
    """`launch` as a program of the project's folder, and that folder on the PATH: the environment of a shell."""
    (client.project / "launch").write_text(f'#!/bin/sh\nexec {shlex.join(LAUNCH)} "$@"\n')
    (client.project / "launch").chmod(0o755)
    return {**client.env, "PATH": f"{client.project}:{client.env['PATH']}", "TERM": "dumb"}


def need(shell):
    if shutil.which(shell) is None:
        missing(f"no {shell} here: apt-get install {shell}")


SHELLS = {
    "bash": (["bash", "--norc", "-i"], 'eval "$(launch --show-completion)"'),
    "zsh": (["zsh", "-f", "-i"], 'autoload -Uz compinit; compinit -u; eval "$(launch --show-completion)"'),
}


@mostly_long("line", ["launch --host=lam", "launch ps --host=lam", "launch --host lam"], ci=(0,))
@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_that_a_person_types_into_completes_a_value(client, ends, installed, shell, line):
    """With a space before it or joined by a sign; what the line has become is printed by the shell itself."""
    need(shell)
    words, show = SHELLS[shell]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(client.project)
        os.execvpe(words[0], words, installed)  # noqa: S606 - a shell, in a terminal of its own
    said = b""

    def says(text):
        nonlocal said
        if select.select([terminal], [], [], 0.0)[0]:
            said += os.read(terminal, 1 << 16)
        return text in said

    try:
        os.write(terminal, f"{show}; echo re''ady\n".encode())
        until(lambda: says(b"ready"), "the shell")
        os.write(terminal, line.encode() + b"\t\x01printf '<%s>' \nprintf '[%s]' end\n")
        until(lambda: says(b"[end]"), "the line")
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    assert "".join(f"<{word}>" for word in f"{line}bda".split()).encode() in said


@pytest.mark.long
def test_fish_itself_completes_a_value(client, ends, installed):
    """It is asked by its own builtin."""
    need("fish")
    for option, value, answers in (
        ("--host=", "la", ["lab", "lambda", "labour"]),
        ("--profile=", "a100", ["a100_40gb", "a100_80gb"]),
        ("--job=", "s", ["sft"]),
        ("--precision=", "f", ["fp16", "fp32"]),
        ("--host ", "lam", ["lambda"]),
    ):
        before = option.strip() if option.endswith("=") else ""
        asks = f"launch --show-completion | source; complete -C 'launch {option}{value}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", asks], cwd=client.project, env=installed, capture_output=True, text=True, check=True
        )  # fmt: skip
        assert set(done.stdout.split()) == {before + answer for answer in answers}


def test_bash_itself_completes_by_what_we_show(client, installed):
    """The script of --show-completion, in a shell that completes."""
    need("bash")
    script = (
        'eval "$(launch --show-completion)"; COMP_WORDS=(launch --ho); COMP_CWORD=1\n'
        '_launch_completion launch; echo "${COMPREPLY[@]}"; complete -p launch\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=client.project, env=installed, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "--host",
        "complete -o default -o nosort -F _launch_completion launch",
    ]
