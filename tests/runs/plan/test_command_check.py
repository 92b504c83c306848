"""The script of a command is looked for among what travels; a launch that could not start it sends nothing."""

import shlex
import subprocess

import pytest

from launcher.config.command_check import findings, ignored_settings
from launcher.config.resolve import Task
from launcher.values.job import Data, Job
from launcher.values.upload_selection import UploadSelection

pytestmark = pytest.mark.slow(reason="many of these tests start several clients and a run")

SAYS_SO = "print('it runs')\n"


@pytest.fixture
def project(client):
    """A git work tree with a script, a package and some that do not travel."""
    for folder in ("src", "pkg", "secret", ".venv/bin"):
        (client.project / folder).mkdir(parents=True)
    for name in (
        "train.py",
        "src/evaluate.py",
        "pkg/__init__.py",
        "pkg/mod.py",
        "secret/train.py",
        "made.py",
    ):
        client.script(SAYS_SO, name)
    client.script("#!/bin/sh\necho it runs\n", "run.sh")
    client.script("", ".venv/pyvenv.cfg")
    client.script("secret/\n", ".gitignore")
    client.script("made.py\n", ".launchignore")
    (client.project / ".venv" / "bin" / "python").symlink_to("/usr/bin/python3")
    (client.project / "linked").symlink_to("src")
    subprocess.run(["git", "init", "-q", str(client.project)], check=True)
    return client


def refused(client, *command):
    """Return what a launch says; nothing is left of it, and a dry run says the same."""
    done = client.run("--host", "local", "--", *command)
    assert done.returncode == 3, done.stdout + done.stderr
    assert not list((client.home / ".launch" / "runs").glob("*"))
    said = done.stderr.removeprefix("refused before anything was sent: ")
    preview = client.planned("--profile", "cpu", "--", *command)
    assert f"would refuse: {said.splitlines()[0]}\n" in preview
    return said


def passes(client, *command):
    return "would refuse" not in client.planned("--profile", "cpu", "--", *command)


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("python trian.py", ["'trian.py' does not exist in", "did you mean 'train.py'?", "code = "]),
        pytest.param("torchrun --nproc-per-node 2 evaluate.py", ["did you mean 'src/evaluate.py'?"], marks=pytest.mark.long),
        ("accelerate launch nothere.py", ["'nothere.py' does not exist in"]),
        ("python secret/train.py", ["is not sent: git ignores it (secret/)", "!secret/train.py"]),
        ("python made.py", ["is not sent: .launchignore", "!made.py"]),
        (".venv/bin/python train.py", ["it belongs to the virtual environment .venv/", "`python` is the job's interpreter"]),
        ("./train.py --lr 1", ["'train.py' is not executable", "chmod +x train.py", "-- python train.py --lr 1"]),
        pytest.param("bash rnu.sh", ["did you mean 'run.sh'?"], marks=pytest.mark.long),
        pytest.param("python -m pkg.mode", ["'pkg/mode.py' does not exist", "did you mean 'pkg/mod.py'?"], marks=pytest.mark.long),
        ("FOO=1 python train.py", ["'FOO=1' is the first word", "launch -e FOO=1 -- python train.py", "-s NAME"]),
    ],
)  # fmt: skip
@pytest.mark.slow(reason="a launch and a dry run for each of ten commands")
def test_a_script_that_could_not_start_is_refused(project, command, parts):
    """With the nearest that travels, or with what leaves it out, and the next thing to type."""
    said = refused(project, *command.split())
    assert [part for part in parts if part not in said] == []


@pytest.mark.slow(reason="a dry run for each of ten commands")
@pytest.mark.parametrize(
    "command",
    [
        "python train.py", "python src", "python linked/evaluate.py", "python -m pkg.mod", "python -m http.server",
        "python -m installed_somewhere", "bash run.sh", "bash -c nothere.py", "/opt/nothere.py", "nothere",
    ],
)  # fmt: skip
def test_what_could_run_there_is_not_refused(project, command):
    """Links, modules, and what only the host can know."""
    assert passes(project, *command.split())


@pytest.mark.parametrize(
    ("command", "code", "mend"),
    [
        ("train.py --lr 1", "script-first", "-- python train.py --lr 1"),
        ("trian.py", "script-first", "-- python train.py"),
        ("run.sh", "script-first", "-- bash run.sh"),
        ("other.py", None, None),
        ("--host lab python train.py", "option-first", "launch --host lab -- python train.py"),
        ("--detach", "option-first", "launch --detach -- …"),
    ],
)
def test_a_first_word_that_can_be_no_program_is_refused(tmp_path, command, code, mend):
    job = Job(name="x", command=command.split())
    selection = UploadSelection(tmp_path, 2, 1, (), (), (), frozenset(["train.py", "run.sh"]), ())
    (found,) = findings(job, selection) or [None]
    assert (found and found.code, found and found.mend[found.mend.index(mend) :]) == (code, mend)


@pytest.mark.parametrize(
    ("command", "mend"),
    [
        (
            ("python", "a.py", "&&", "echo", "done now"),
            "-- sh -c 'python a.py && echo '\"'\"'done now'\"'\"''",
        ),
        (("python", "a.py", "|", "tee", "log"), "-- sh -c 'python a.py | tee log'"),
        (("python a.py --lr 1",), "-- python a.py --lr 1"),
        (("python", "a.py", ">", "out.txt", "2>&1"), "-- sh -c 'python a.py > out.txt 2>&1'"),
        (("python", "a.py", "&"), "-- sh -c 'python a.py &'"),
        (("python", "a.py", "--delimiter", ";"), None),
        (("python", "a.py", "--special", "<", ">"), None),
        (("python", "a.py", "--marks", ",", ";", "!"), None),
        (("python", "a.py", "--where", "a", ">", "3"), None),
        (("find", ".", "-name", "x.py", "-exec", "python", "{}", ";"), None),
        (("my dir/run.sh",), None),
        (("sh", "-c", "a && b"), None),
    ],
)
def test_words_that_only_a_shell_reads_are_refused(tmp_path, command, mend):
    """With the line that a shell gets; a value of an option may be any of them."""
    job = Job(name="x", command=command)
    selection = UploadSelection(tmp_path, 1, 1, (), (), (), frozenset(["a.py", "my dir/run.sh"]), ())
    found = [one.mend for one in findings(job, selection) if one.code == "shell-words"]
    assert len(found) == (mend is not None)
    assert all(one.endswith(mend) for one in found)


def test_a_file_without_a_first_line_that_names_its_interpreter_is_refused(project):
    """As the kernel would; with the line it runs."""
    path = project.project / "train.py"
    path.chmod(0o755)
    assert "does not begin with a line `#!`" in refused(project, "./train.py")
    path.write_text(f"#!/usr/bin/env python3\n{SAYS_SO}")
    run = project.detached("--host", "local", "--", "./train.py")
    project.run("attach", run)
    assert "it runs" in project.ok("logs", run)


def test_the_mend_for_a_script_that_is_left_out_lets_it_run(project):
    """The line that the refusal names, in .launchignore."""
    said = refused(project, "python", "secret/train.py")
    line = said.split("!")[-1].strip()
    project.script(f"!{line}\n", ".launchignore")
    run = project.detached("--host", "local", "--", "python", "secret/train.py")
    project.run("attach", run)
    assert "it runs" in project.ok("logs", run)


def test_a_script_above_the_folder_is_refused_with_the_folder_that_holds_it(project):
    """It exists here, and would not there."""
    (project.project / "deep").mkdir()
    done = project.run("--host", "local", "--set", "code=deep", "--", "python", "../train.py")
    assert done.returncode == 3
    assert "'../train.py' is outside" in done.stderr


ALONE = "import argparse\n"
PLAIN = "import argparse, torch\nfrom pkg import mod\nprint(torch.ones(1))\n"


@pytest.mark.parametrize(
    ("source", "command", "adapts", "level"),
    [
        pytest.param(PLAIN, "python train.py", False, "refuse", id="plain"),
        pytest.param(PLAIN, "torchrun --nproc-per-node 2 train.py", False, "refuse", id="on several cards"),
        pytest.param(PLAIN, "python -m pkg.mod", False, "refuse", id="a module of the folder"),
        pytest.param(PLAIN, "python train.py", True, "refuse", id="adapted"),
        pytest.param("import launcher_worker\n", "python train.py", False, None, id="the worker"),
        pytest.param(f"{PLAIN}import inner\n", "python train.py", False, None, id="the worker in a module"),
        pytest.param(PLAIN, "python -m installed_somewhere", False, "note", id="a module elsewhere"),
        pytest.param(PLAIN, "sh -c 'python train.py'", False, "note", id="a shell"),
        pytest.param(PLAIN, "some_program train.py", False, "note", id="a program"),
        pytest.param("import importlib, sys\nimportlib.import_module(sys.argv[1])\n", "python train.py mod", False, "note", id="a computed import"),
        pytest.param("from importlib import import_module as load\nload('inner')\n", "python train.py", False, "note", id="a computed import by another name"),
        pytest.param("import sys\nsys.path.insert(0, 'lib')\nimport mine\n", "python train.py", False, "note", id="a module of another folder"),
        pytest.param("from company.train import main\nmain()\n", "python train.py", False, "note", id="a package that may use the worker"),
        pytest.param("import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'inner'])\n", "python train.py", False, "note", id="a process"),
        pytest.param("import os\nos.system('python inner.py --x 1')\n", "python train.py", False, "note", id="a shell in the script"),
        pytest.param("from pydoc import locate\nlocate('inner')\n", "python train.py", False, "note", id="a module by its name"),
        pytest.param("import importlib.util as u\nu.spec_from_file_location('m', 'in' + 'ner.py')\n", "python train.py", False, "note", id="a module by its file"),
        pytest.param("import hydra\nhydra.utils.call(hydra.compose('c').run)\n", "python train.py", False, "note", id="hydra"),
        pytest.param("from lightning.pytorch.cli import LightningCLI\nLightningCLI()\n", "python train.py", False, "note", id="Lightning's command line"),
    ],
)  # fmt: skip
def test_a_setting_that_nothing_uses_is_refused_and_noted_where_not_all_was_read(
    tmp_path, source, command, adapts, level
):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "inner.py").write_text("from launcher_worker import log\n")
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "mod.py").write_text("x = 1\n")
    job = Job(name="x", command=shlex.split(command), adapt=adapts)
    task = Task(
        job,
        tmp_path,
        tmp_path,
        frozenset(["seed", "steps", "settings.lr", "settings.optim", "time_limit_minutes"]),
        None,
    )
    found = list(ignored_settings(task))
    assert [one.level for one in found] == ([] if level is None else [level])
    named = "seed, settings.lr" if adapts else "seed, settings.lr, steps"
    assert all(one.message.startswith(f"--set {named}: ") for one in found)


@pytest.mark.parametrize(
    ("changed", "ways"),
    [
        ("settings.lr", ["an argument of the script, if it has one   -- python train.py --lr 0.1", "import launcher_worker"]),
        ("steps", ["an argument of the script, if it has one   -- python train.py --steps 9", "--adapt     gives steps to a Trainer", "import"]),
        ("batch.global", ["--adapt     gives batch.global to a Trainer", "import launcher_worker in the script"]),
    ],
)  # fmt: skip
def test_a_setting_that_is_refused_names_the_ways_that_work(tmp_path, changed, ways):
    (tmp_path / "train.py").write_text(ALONE)
    job = Job(name="x", command=("python", "train.py"), settings={"lr": 0.1}, steps=9)
    (found,) = ignored_settings(Task(job, tmp_path, tmp_path, frozenset([changed]), None))
    assert found.level == "refuse"
    said = found.mend.split("\n  or ")
    assert [one.startswith(way) for one, way in zip(said, ways, strict=True)] == [True] * len(ways), said


@pytest.mark.parametrize(
    ("source", "command", "is_noted"),
    [
        (ALONE, ["train.py"], True),
        (ALONE, ["train.py", "--data", "../data/train/rows.jsonl"], False),
        ("open('../data/train/rows.jsonl')\n", ["train.py"], False),
        ("import launcher_worker\n", ["train.py"], False),
    ],
)
def test_data_that_no_one_reads_is_noted_with_its_path_there(tmp_path, source, command, is_noted):
    (tmp_path / "train.py").write_text(source)
    (tmp_path / "rows.jsonl").touch()
    data = Data(train=str(tmp_path / "rows.jsonl"))
    job = Job(name="x", command=("python", *command), data=data)
    found = list(ignored_settings(Task(job, tmp_path, tmp_path, frozenset(["data.train"]), None)))
    assert [one.level for one in found] == ["note"] * is_noted
    assert all("-- python train.py ../data/train/rows.jsonl" in (one.mend or "") for one in found)
