"""The command line's manners: what it says to mistakes, with which exit code, and that it never shows a traceback."""

import re
import shlex
import subprocess

import pytest
from testbed.client import LAUNCH
from testbed.tables import mostly_long

from launcher import __version__


def refused(client, *words):
    """What is said to a mistake: exit code 2, nothing on standard output, nothing made."""
    before = sorted(client.project.rglob("*"))
    done = client.run(*words)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stdout == ""
    assert sorted(client.project.rglob("*")) == before
    assert not (client.home / ".launch" / "runs").exists()
    return done.stderr


@pytest.mark.parametrize(
    "words", [("--host", "local", "python", "train.py"), ("--detach", "train.py"), ("--dry-run", "python")]
)
def test_words_without_the_dashes_print_both_right_forms(client, words):
    """A command goes after `--`, a verb comes first; both lines can be pasted."""
    said = refused(client, *words)
    stray = " ".join(words[2:] if words[0] == "--host" else words[1:])
    assert re.search(rf"unexpected words?: {re.escape(stray)}\n", said)
    assert re.search(rf" -- (python )?{re.escape(stray)}\n", said)
    assert "launch ps --host HOST" in said


@pytest.mark.parametrize(
    "words", [("nonsense",), ("attahc",), ("profile", "nonsense"), ("nonsense", "--host", "local")]
)
def test_an_unknown_verb_is_named(client, words):
    """It is not taken for a command, nor for a run."""
    assert next(word for word in words if word != "profile") in refused(client, *words)


@pytest.mark.parametrize(
    "words",
    [("--nonsense",), ("ps", "--nonsense"), ("--host",), ("--precision", "int4"), ("--runtime", "magic")],
)
def test_an_unknown_option_or_value_is_named(client, words):
    """The word that is wrong is in the message."""
    assert words[-1] in refused(client, *words)


@pytest.mark.parametrize(
    "verb",
    [
        (),
        ("probe",),
        ("ps",),
        ("attach", "last"),
        ("stop", "last"),
        ("resume", "last"),
        ("logs",),
        ("metrics",),
        ("pull",),
        ("ls",),
        ("cp", "last:w.pt", "."),
    ],
)
def test_an_unknown_host_names_the_nearest_for_every_verb(client, verb):
    """Where it was looked for, a guess, all that are known."""
    client.script('[hosts.lambda]\naddress = "x.invalid"\n', "launch.toml")
    said = refused(client, *verb, "--host", "lambada")
    assert "unknown host 'lambada'" in said
    assert "did you mean 'lambda'?" in said
    assert "launch.toml" in said


@pytest.mark.parametrize("words", [("--profile", "titan_rx"), ("profile", "show", "titan_rx")])
def test_an_unknown_profile_names_the_nearest(client, words):
    """Of all the cards that we know."""
    assert "did you mean 'titan_rtx'?" in refused(client, *words)


@pytest.mark.parametrize(
    "verb", ["attach", "compare", "logs", "ls", "metrics", "stop", "pull", "plot", "resume", "rm"]
)
def test_a_run_that_is_not_here_says_where_to_look(client, verb):
    """Without a run, and with a word that means none; the next command can be pasted."""
    assert "launch" in refused(client, verb, "last")
    assert "launch ps" in refused(client, verb, "zzzz")


@pytest.mark.parametrize("words", [(), ("--dry-run",), ("ps", "--host", "lab"), ("probe",)])
def test_a_bad_project_file_names_file_key_and_value(client, words):
    """Whatever the verb, the file's mistake is told first, with its line."""
    client.script('[hosts.lab]\naddress = "x"\nport = "22"\n', "launch.toml")
    said = refused(client, *words)
    assert re.search(
        r'launch\.toml: hosts\.lab\.port = "22": expected a whole number, got text +\(line 3\)', said
    )


def test_a_bad_job_file_names_file_key_and_nearest(client):
    """A misspelt key of a job is told with what is allowed."""
    client.script('name = "x"\ncommand = ["true"]\nstepz = 3\n', "my.toml")
    said = refused(client, "--job", "my.toml")
    assert "my.toml: unknown key 'stepz': did you mean 'steps'?" in said
    assert "allowed: name, command" in said


@pytest.mark.parametrize(
    "words",
    [("--job", "sft", "--", "true"), ("--set", "steps"), ("--set", "steps=many"), ("--job", "nope.toml")],
)
def test_a_launch_that_contradicts_itself_is_a_usage_error(client, words):
    """Two jobs, a setting without a value, a value of another kind, a file that is not there."""
    assert refused(client, *words).strip()


def test_the_version_is_the_packages(client):
    """One line, and success; behind it the commit, where that is known."""
    assert re.fullmatch(rf"launch {re.escape(__version__)}(, .* [0-9a-f]{{12}})?\n", client.ok("--version"))


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_the_root_help_shows_the_launchs_options_and_every_verb(client, word):
    """What a launch takes and what else there is, on one page with examples."""
    said = client.ok(word)
    assert [
        one
        for one in ("--host", "--profile", "--job", "--set", "--dry-run", "--probe", "--detach", "--json")
        if one not in said
    ] == []
    assert [
        one
        for one in (
            "ps",
            "attach",
            "logs",
            "metrics",
            "stop",
            "resume",
            "pull",
            "ls",
            "cp",
            "probe",
            "hosts",
            "profile",
            "image",
        )
        if not re.search(rf"^  {one} ", said, re.MULTILINE)
    ] == []
    assert "launch --host lab -- python train.py" in said


def test_the_word_help_is_the_option(client):
    """Alone, and before a verb."""
    assert client.ok("help") == client.ok("--help")
    assert client.ok("help", "ps") == client.ok("ps", "--help")


def test_a_usage_line_says_where_a_command_must_follow(client):
    """After `exec` it must; a verification or a launch has a job without one."""
    for verb, usage in (
        ("exec", "RUN -- COMMAND…"),
        ("verify", "[OPTIONS] [-- COMMAND…]"),
        ("forward", "RUN [LOCAL:]PORT [-- COMMAND…]"),
    ):
        assert client.ok(verb, "--help").splitlines()[0].endswith(f" {usage}")


def test_words_behind_the_dashes_belong_to_the_job_alone(client):
    """Not even `--help` or a verb behind `--` is ours."""
    said = client.planned("--json", "--profile", "cpu", "--", "ps", "--help", "--", "--host")
    assert '"command":["ps","--help","--","--host"]' in said


@pytest.mark.parametrize("words", [("--",), ("--host", "local", "--"), ("--detach", "--dry-run", "--")])
def test_dashes_without_a_command_show_the_form(client, words):
    """It is no wish for the demo; the line can be pasted."""
    said = refused(client, *words)
    assert "no command after --" in said
    assert "-- python train.py" in said


@pytest.mark.long
@pytest.mark.slow(reason="starts a client for each verb")
def test_runs_that_is_a_file_is_told_before_anything_is_made(client):
    """By launch before it asks the host for anything, and by every verb that wants a mirror there."""
    run = client.detached("--", "true")
    client.runs.rename(client.project / "mirrors")
    client.script("", "runs")
    for words in (("--", "true"), *((verb, run, "--host", "local") for verb in RUN_VERBS)):
        done = client.run(*words)
        assert done.returncode == 2, done.stdout + done.stderr
        assert done.stderr.startswith(str(client.runs))
    assert [path.name for path in (client.home / ".launch" / "runs").iterdir()] == [run]


@mostly_long("words", ["-- true", "ps", "logs", "stop last", "--job sft"], ci=(0, 1))
def test_a_working_directory_that_is_gone_is_told(client, words):
    """In one line, not by a traceback."""
    gone = client.project / "gone"
    gone.mkdir()
    command = shlex.join(LAUNCH) + f" {words}"
    done = subprocess.run(
        ["sh", "-c", f"rmdir {gone} && {command}"],
        cwd=gone,
        env=client.env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith("the current directory has been removed\n")
    assert "Traceback" not in done.stderr


RUN_VERBS = ("attach", "logs", "ls", "metrics", "plot", "pull", "resume", "stop")
STRANGE = ("../x", "*", "[0-9]*", "/etc", ".", "a\nb", "\x1b[2J", "é\udce9")


@pytest.mark.long
@pytest.mark.slow(reason="starts a client for each verb")
def test_a_word_that_means_several_runs_or_none_is_a_usage_error(client):
    """Whatever the verb, and whatever is written: patterns and paths are plain letters here."""
    runs = [client.detached("--name", "same", "--", "true") for _ in range(2)]
    prefix = runs[0].rpartition("-")[0]
    before = sorted(client.runs.rglob("*"))
    for verb in RUN_VERBS:
        for where in ((), ("--host", "local")):
            done = client.run(verb, prefix, *where)
            assert (done.returncode, done.stdout) == (2, ""), verb
            assert f"'{prefix}' matches 2 runs" in done.stderr
            other = "*" if where else "../x"
            for word in (other,) if verb != "stop" else STRANGE:
                done = client.run(verb, word, *where)
                assert (done.returncode, done.stdout) == (2, ""), (verb, word)
                assert "no run" in done.stderr
                assert "launch ps" in done.stderr
                assert "\x1b" not in done.stderr
    assert sorted(client.runs.rglob("*")) == before


def test_help_starts_without_what_it_does_not_need():
    """Whatever is heavy is imported by the verb that uses it."""
    code = f"import sys; sys.argv[1:] = ['--help']\ntry:\n    {LAUNCH[-1].replace('; ', chr(10) + '    ')}\nfinally:\n    print(*sys.modules)"
    done = subprocess.run([LAUNCH[0], "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "launcher.cli.output.say" in loaded
    assert [
        one for one in ("rich", "pydantic", "fabric", "launcher.runs", "launcher.transport") if one in loaded
    ] == []
