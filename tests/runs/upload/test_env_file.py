"""Variables of the command line and of files: what is read, what is recorded, and what is refused. No run is started."""

import json
import os

import pytest

from launcher.config import env_file, job_variables, resolve, secret_values
from launcher.copy.request import Request
from launcher.errors import BadFileError, UsageError
from launcher.runs.launch.resolved_request import understand
from launcher.values.job import Job


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("A=b", "b"),
        ("  A = b c  ", "b c"),
        ("export A=b", "b"),
        ("A=", ""),
        ("A=b # why", "b"),
        ("A=b#c", "b#c"),
        ("A= # why", ""),
        ("A=#b", "#b"),
        ('A="b # c"', "b # c"),
        (r'A="b\n\"c\" \\ \d"  # why', 'b\n"c" \\ \\d'),
        (r"A='b\n # $c'", r"b\n # $c"),
        (r"A='b\'c'", "b'c"),
        ("A='two\nlines'", "two\nlines"),
        ("A=$HOME/${B}", "$HOME/${B}"),
        ('A={"a": "b#c"}', '{"a": "b#c"}'),
        ("A=é", "é"),
        ("A=b\r", "b"),
    ],
)
def test_a_line_is_read_as_others_read_it(tmp_path, line, value):
    """Quotes, comments and `export` as python-dotenv reads them; nothing is expanded."""
    (tmp_path / ".env").write_bytes(f"# a file\n\n{line}\nLAST=1\n".encode())
    read = env_file.read_all([str(tmp_path / ".env")])
    assert read.values == {"A": value, "LAST": "1"}
    assert repr(read) == "HiddenValues(A, LAST)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A=1\n-SESAME", "line 2 is not NAME=VALUE"),
        ("A=1\nhf_SESAME", "line 2 names a variable that is not set here"),
        ("A=1\n\n9=SESAME", "line 3 is not NAME=VALUE"),
        ("A=1\r\n\r\n# why\r\n9=SESAME", "line 4 is not NAME=VALUE"),
        ('A=1\nB="SESAME', "line 2 is not NAME=VALUE, or begins a quoted value that does not end"),
        ('B="SESAME" SESAME', "line 1 is not NAME=VALUE"),
        ("B=SES\0AME", "line 1 holds a NUL byte"),
    ],
)
def test_a_bad_line_is_named_and_not_repeated(tmp_path, text, said):
    """A file of secrets: its number alone."""
    (tmp_path / "x.env").write_text(text)
    with pytest.raises(BadFileError) as error:
        env_file.read_all([str(tmp_path / "x.env")])
    assert said in str(error.value)
    assert "SESAME" not in str(error.value)


def test_a_pipe_is_read_once_and_a_later_file_wins(tmp_path, monkeypatch):
    """As `--env-file <(sops -d .env)`; a name alone takes the shell's value."""
    monkeypatch.setenv("FROM_SHELL", "shell")
    (tmp_path / "b.env").write_text("B=2\nFROM_SHELL\n")
    reading, writing = os.pipe()
    os.write(writing, b"A=1\nB=1\n")
    os.close(writing)
    read = env_file.read_all([f"/dev/fd/{reading}", str(tmp_path / "b.env")])
    os.close(reading)
    assert read.values == {"A": "1", "B": "2", "FROM_SHELL": "shell"}


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("IN_SHELL", "of the shell")
    (tmp_path / "job.toml").write_text(
        'name = "x"\ncommand = ["a"]\nsecrets = ["OF_JOB"]\n'
        '[variables]\nPLAIN = "of the job"\nTHREADS = 4\nIN_FILE = "of the job"\n'
    )
    (tmp_path / ".env").write_text(
        "IN_FILE=of the file\nBOTH=of the file\nOF_JOB=of the file\nIN_SHELL=of the file\n"
    )
    return tmp_path


def test_the_command_line_wins_over_the_file_and_the_file_over_the_job(project):
    """-e and -s, then --env-file, then the job's [variables]; what the file gives is secret."""
    request = Request(job="./job.toml", variables=("BOTH=of -e",), env_files=(".env",), secrets=("IN_SHELL",))
    resolved = understand(request)
    assert resolved.job.variables == {"PLAIN": "of the job", "THREADS": "4", "BOTH": "of -e"}
    assert secret_values.values(resolved.job, resolved.values) == {
        "OF_JOB": "of the file",
        "IN_FILE": "of the file",
        "IN_SHELL": "of the shell",
    }
    assert "of the file" not in repr(resolved)
    assert "of the file" not in json.dumps(resolved.job.model_dump(mode="json"))


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Request(variables=("HF_TOKEN",)), "-s HF_TOKEN"),
        (Request(variables=("SES AME",)), "expected NAME=VALUE"),
        (Request(variables=("9=SESAME",)), "not the name of a variable"),
        (Request(variables=("CUDA_VISIBLE_DEVICES=SESAME",)), "--gpus"),
        (Request(variables=("LAUNCH_TOKEN=SESAME",)), "launch sets it"),
        (Request(variables=("A=SESAME",), secrets=("A",)), "give it once"),
        (Request(env_files=("path.env",)), "-e PYTHONPATH=…"),
        (Request(env_files=("cards.env",)), "--gpus"),
    ],
)
def test_what_cannot_be_set_is_refused_without_its_value(project, request_, said):
    """Before any host is asked, with the next command."""
    (project / "path.env").write_text("PYTHONPATH=SESAME\n")
    (project / "cards.env").write_text("CUDA_VISIBLE_DEVICES=SESAME\n")
    with pytest.raises(UsageError) as error:
        understand(request_._replace(job="./job.toml"))
    assert said in str(error.value)
    assert "SESAME" not in str(error.value)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('LAUNCH_TOKEN = "a"', "variables.LAUNCH_TOKEN cannot be set"),
        ('"A-B" = "a"', "variables.A-B is not the name of a variable"),
        ("A = 1.5", "variables.A = 1.5: expected text"),
        ("A = true", "variables.A = true: expected text"),
    ],
)
def test_a_table_of_variables_is_checked(project, table, said):
    """A job's file names key and file."""
    (project / "job.toml").write_text(f'name = "x"\ncommand = ["a"]\n[variables]\n{table}\n')
    with pytest.raises(BadFileError, match=said):
        resolve.task("./job.toml", [], [], None)


@pytest.mark.parametrize(
    ("name", "value", "level"),
    [
        ("HF_TOKEN", "hf_abcdefghijklmnop123", "refuse"),
        ("T", "ghp_A8kd92JfkLs0qPz7RtYw3NmXc5VbGh1DuEoI", "refuse"),
        ("T", "github_pat_11ABCDEFG0123456789_abcdef", "refuse"),
        ("T", "sk-proj-abcdefghijklmnop0123", "refuse"),
        ("AWS", "AKIAIOSFODNN7EXAMPLE", "refuse"),
        ("MODEL", "task-specific-distilled-model-of-mine", None),
        ("https_proxy", "http://ada:hunter2@proxy:3128", "refuse"),
        ("DB_PASSWORD", "hunter2", "note"),
        ("MAX_TOKEN_COUNT", "512", "note"),
        ("TOKENIZERS_PARALLELISM", "false", None),
        ("WANDB_PROJECT", "run-0123456789-abcdef", None),
    ],
)
def test_a_credential_is_not_recorded_as_a_variable(name, value, level):
    """A value that is one is refused; a name that sounds like one gets a note that names -s."""
    found = list(job_variables.findings({name: value}))
    assert [one.level for one in found] == ([level] if level else [])
    assert all(f"-s {name}" in one.mend and value not in one.message + one.mend for one in found)


def test_a_short_value_of_a_file_is_passed_and_said():
    """A file holds DEBUG=1 too, which cannot be hidden in a log; the run gets it all the same."""
    given = env_file.HiddenValues({"DEBUG": "1", "EMPTY": "", "SEED": "12345", "LONG": "long enough"})
    job, taken = secret_values.with_file(Job(name="x", command=("a", "1", "12345")), given, ())
    assert secret_values.values(job, taken) == dict(given.values)
    (note,) = secret_values.findings(taken)
    assert "DEBUG, EMPTY, SEED: a value of fewer than 4 characters" in note.message
    assert note.level == "note"


def test_a_value_of_a_file_in_the_command_names_the_way_to_record_it():
    """MODEL=gpt2 in a file is no secret: -e says so, and wins."""
    job = Job(name="x", command=("a", "--model=gpt2"), secrets=("MODEL",))
    with pytest.raises(UsageError, match=r"-e MODEL=…"):
        secret_values.values(job, env_file.HiddenValues({"MODEL": "gpt2"}))
