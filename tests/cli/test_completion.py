"""Completion: a shell asks how a word may end, in its own protocol."""

import shlex
import shutil
import subprocess

import pytest
from testbed.client import LAUNCH, missing


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
        asked = {"_LAUNCH_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
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
        ("launch ps --h", ["--host", "--help"]),
        ("launch --host la", ["lab", "lambda", "labour"]),
        ("launch --profile a100", ["a100_40gb", "a100_80gb"]),
        ("launch profile show tit", ["titan_rtx"]),
        ("launch image show --profile tit", ["titan_rtx"]),
        ("launch --job s", ["sft"]),
        ("launch --precision f", ["fp16", "fp32"]),
        ("launch -- python --ho", []),
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


def test_bash_itself_completes_by_what_we_show(client):
    """The script of --show-completion, in a shell that completes."""
    if shutil.which("bash") is None:
        missing("no bash here: apt-get install bash")
    (client.project / "launch").write_text(f'#!/bin/sh\nexec {shlex.join(LAUNCH)} "$@"\n')  # fmt: skip
    (client.project / "launch").chmod(0o755)
    script = (
        'PATH="$PWD:$PATH"; eval "$(launch --show-completion)"; COMP_WORDS=(launch --ho); COMP_CWORD=1\n'
        '_launch_completion launch; echo "${COMPREPLY[@]}"; complete -p launch\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=client.project, env=client.env, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.splitlines() == ["--host", "complete -o default -F _launch_completion launch"]
