"""What a shell is told, in its own words; no shell is started."""

import os
import subprocess
import sys

import pytest
from testbed.entries import know
from testbed.tables import mostly_long

from launcher.cli.completion.shell_answers import Completion, rejoin_words, tell

ODD = "a $(touch x) `y` \"z\" 'w' \\ \x1b[31m\n é"
LOADED = """
import sys
from launcher.cli import main
try:
    main()
finally:
    open("loaded", "w").write(" ".join(sys.modules))
"""


@pytest.mark.parametrize(
    ("words", "joined"),
    [
        (["launch", "--host", "=", "la"], ["launch", "--host=la"]),
        (["launch", "--host", "="], ["launch", "--host="]),
        (["launch", "--set", "method", "=", "lo"], ["launch", "--set", "method=lo"]),
        (["launch", "--set", "=", "method", "=", ""], ["launch", "--set=method="]),
        (["launch", "cp", "last", ":", "out/x"], ["launch", "cp", "last:out/x"]),
        (["launch", "--set", "'a=b'", "--jo"], ["launch", "--set", "'a=b'", "--jo"]),
        (["launch", "logs", ""], ["launch", "logs", ""]),
    ],
)
def test_what_bash_splits_is_one_word_again(monkeypatch, words, joined):
    """At an equals sign and at a colon; a quoted word is whole already."""
    monkeypatch.setenv("COMP_WORDS", "\n".join(words))
    monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
    rejoin_words()
    assert os.environ["COMP_WORDS"].split("\n") == joined
    assert os.environ["COMP_CWORD"] == str(len(joined) - 1)


def test_bash_gets_what_follows_the_sign(monkeypatch):
    """It replaces only that."""
    monkeypatch.setenv("_LAUNCH_COMPLETE", "complete_bash")
    assert [offer.value for offer in tell([Completion("method=lora", "x")], "method=l")] == ["lora"]
    assert [offer.value for offer in tell([Completion("k3f1x1:")], "k3")] == ["k3f1x1:"]


def test_bash_gets_no_word_that_it_would_run_or_expand(monkeypatch):
    """It puts an offer into the line as it is, and a clone may have a job or a host of any name."""
    monkeypatch.setenv("_LAUNCH_COMPLETE", "complete_bash")
    plain = ["sft", "lab-2", "m@10.0.0.1", "batch.micro=4"]
    others = ["a$(touch x)", "b`x`", "c;x", "d x", "e*", "f'", 'g"', "h&x", "i\nx", "~", "!x", "j{1,2}"]
    assert [one.value for one in tell([*map(Completion, [*plain, *others])], "")] == plain


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_a_description_is_never_a_command_or_a_line_of_its_own(monkeypatch, capsys, shell):
    """It may come from a job's file or from a host."""
    monkeypatch.setenv("_LAUNCH_COMPLETE", f"complete_{shell}")
    with pytest.raises(SystemExit):
        tell([Completion("steps=", ODD), Completion("seed=", "plain")], "")
    said = capsys.readouterr().out.rstrip("\n")
    assert "\x1b" not in said
    if shell == "fish":
        assert len(said.split("\n")) == 2
    else:
        assert "\n" not in said
        assert not {"`", '"', "("} & set(said.partition("launch_shown=(")[2].partition(");")[0])


@pytest.mark.parametrize("line", ["launch logs ", "launch --set settings.", "launch rm 26"])
def test_what_is_heavy_is_not_loaded(tmp_path, line):
    """A person waits after Tab: no validation, no ssh, no torch."""
    run = tmp_path / "runs" / "261122-own-abcdef"
    run.mkdir(parents=True)
    know(run.name, run.parent, order=1)
    asked = {"_LAUNCH_COMPLETE": "complete_fish", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    env = {**os.environ, **asked, "_TYPER_COMPLETE_ARGS": line, "HOME": str(tmp_path)}
    env.pop("LAUNCH_RUNS", None)
    subprocess.run([sys.executable, "-c", LOADED], cwd=tmp_path, env=env, capture_output=True, check=True)
    loaded = set((tmp_path / "loaded").read_text().split())
    assert "launcher.cli.app" in loaded
    assert not loaded & {"pydantic", "torch", "paramiko", "fabric", "docker"}


@mostly_long("content", ["hosts = [", "hosts = 3", "\x00", "job = 3"], ci=(0, 2))
@pytest.mark.parametrize("words", ["launch\n--host\nl", "launch\n--set\nst", "launch\nstop\n"])
def test_nothing_is_said_of_broken_files(tmp_path, content, words):
    """A shell would show it in the middle of the line. The command itself says it."""
    run = tmp_path / "runs" / "261122-own-abcdef"
    (run / "0001").mkdir(parents=True)
    entry = know(run.name, run.parent)
    entry.write_text("{" if content == "\x00" else '{"order": 1, "launched": NaN}')
    (run / "0001" / "state.json").write_text(content)
    (tmp_path / "launch.toml").write_text(content)
    asked = {"_LAUNCH_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count("\n"))}
    env = {**os.environ, **asked, "HOME": str(tmp_path)}
    env.pop("LAUNCH_RUNS", None)
    code = "from launcher.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"Traceback" not in done.stdout


def test_an_error_of_ours_is_not_shown_either(tmp_path):
    """Not even a bug."""
    code = "import launcher.cli.app as app; app.main = lambda: 1 / 0; from launcher.cli import main; main()"
    env = {**os.environ, "_LAUNCH_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "launch "}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")
