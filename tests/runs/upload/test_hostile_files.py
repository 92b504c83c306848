"""Files of a folder that others wrote: pipes, devices and repositories whose settings name programs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from testbed.client import missing

from launcher.base.json_file import read_json
from launcher.errors import BadFileError, UsageError
from launcher.metrics.curves import Point
from launcher.metrics.picture import draw
from launcher.upload import git_rules
from launcher.upload.git_rules import ignored_by_git
from launcher.upload.launch_ignore import read_rules
from launcher.upload.named_paths import refuse_link_out

JOB = 'name = "j"\ncommand = ["python", "train.py"]\n'


def pipe(path):
    """Nobody ever writes to it."""
    os.mkfifo(path)


def device(path):
    """A link to what never ends."""
    path.symlink_to("/dev/zero")


def link_to_pipe(path):
    """A link is followed to a regular file only."""
    os.mkfifo(path.with_name("there"))
    path.symlink_to("there")


@pytest.mark.parametrize("make", [pipe, device, link_to_pipe])
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("launch.toml", "--dry-run -- true"),
        ("launch.toml", "ps --host local"),
        ("launch.toml", "hosts"),
        (".launchignore", "--dry-run -- true"),
        ("j.toml", "--dry-run --job j.toml"),
        ("j.toml", "launch trust j.toml"),
        ("j.toml", "batch j.toml"),
        ("p.toml", "profile show p"),
        (".env", "--dry-run --env-file .env -- true"),
        ("probe.json", "--dry-run --probe probe.json -- true"),
        ("log.txt", "diagnose log.txt"),
    ],
)
def test_what_is_no_regular_file_ends_in_one_line_at_once(client, make, name, words):
    """It is not waited for, nor read without end."""
    folder = client.project / "profiles" if name == "p.toml" else client.project
    folder.mkdir(exist_ok=True)
    make(folder / name)
    done = client.run(*words.removeprefix("launch ").split(), timeout=60)
    assert done.returncode == 2
    (line, *_) = done.stderr.splitlines()
    assert name in line
    assert "not a regular file" in line


@pytest.mark.parametrize("make", [pipe, device])
@pytest.mark.parametrize("name", ["requirements.txt", "train.py", "more.py", "pyproject.toml", "uv.lock"])
def test_a_file_that_is_only_looked_at_does_not_hold_a_dry_run(client, make, name):
    """Packages and hints are looked for in them."""
    client.script("import more\n")
    client.script("", "more.py")
    client.script('[project]\nname = "a"\nversion = "1"\ndependencies = []\n', "pyproject.toml")
    (client.project / name).unlink(missing_ok=True)
    make(client.project / name)
    assert client.run("--dry-run", "--", "python", "train.py", timeout=60).returncode in (0, 3)


def test_a_link_to_a_regular_file_is_followed(client, tmp_path):
    """As a person keeps settings elsewhere."""
    (tmp_path / "mine.toml").write_text(JOB)
    (client.project / "j.toml").symlink_to(tmp_path / "mine.toml")
    client.script("print(1)\n")
    client.planned("--job", "j.toml")


def test_a_file_that_is_too_large_is_not_read_whole(tmp_path):
    """The error names file and limit; for JSON of ours it is as if it were missing."""
    with (tmp_path / ".launchignore").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(BadFileError, match=r"\.launchignore: is larger than 4 MB"):
        read_rules(tmp_path)
    assert read_json(tmp_path / ".launchignore") == {}


@pytest.fixture
def repository(tmp_path):
    """A work tree in which `*.log` is ignored."""
    folder = tmp_path / "tree"
    (folder / "inner").mkdir(parents=True)
    (folder / ".gitignore").write_text("*.log\n")
    (folder / "inner" / ".gitignore").write_text("x*\n")
    (folder / "a.log").touch()
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-qm", "x")
    return folder


def git(folder, *words):
    """Run git there; return what it printed."""
    return subprocess.run(
        ["git", "-C", str(folder), *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def test_a_folder_in_the_form_of_a_bare_repository_is_refused(client):
    """Its settings are tracked as any file, and come with a clone."""
    origin, mark = client.home / "origin", client.home / "started"
    (origin / "sub" / "objects").mkdir(parents=True)
    (origin / "sub" / "refs").mkdir()
    for name in ("objects/.keep", "refs/.keep"):
        (origin / "sub" / name).touch()
    (origin / "sub" / "HEAD").write_text("ref: refs/heads/main\n")
    (origin / "sub" / "config").write_text(
        f'[core]\nrepositoryformatversion = 0\nbare = false\nworktree = ..\nfsmonitor = "touch {mark}; false"\n'
    )
    (origin / "sub" / "train.py").write_text("print(1)\n")
    (origin / "a.toml").write_text('name = "a"\ncommand = ["python", "train.py"]\ncode = "sub"\n')
    git(origin, "init", "-q")
    git(origin, "add", "-A")
    git(origin, "-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-qm", "x")
    client.project.rmdir()
    git(client.home, "clone", "-q", str(origin), str(client.project))
    done = client.run("--dry-run", "--job", "a.toml")
    assert done.returncode == 2
    assert "has the form of a bare git repository" in done.stderr
    assert not mark.exists()


@pytest.mark.parametrize("fetch", ["ext", "ssh", "file"])
def test_git_runs_no_program_that_a_repository_names(repository, tmp_path, fetch):
    """An archive may hold a whole `.git`: a monitor, hooks, and a missing object that is fetched by a command."""
    if shutil.which("strace") is None:
        missing("strace is not installed")
    missed = git(repository, "rev-parse", ":inner/.gitignore")
    git(repository, "update-index", "--skip-worktree", "inner/.gitignore")
    (repository / "inner" / ".gitignore").unlink()
    (repository / ".git" / "objects" / missed[:2] / missed[2:]).unlink()
    for name in ("post-index-change", "reference-transaction", "fsmonitor-watchman"):
        hook = repository / ".git" / "hooks" / name
        hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\n")
        hook.chmod(0o755)
    url = {"ext": f"ext::touch {tmp_path}/started", "ssh": "me@127.0.0.1:x", "file": str(tmp_path / "x")}[
        fetch
    ]
    (repository / ".git" / "config").write_text(
        f"""[core]
repositoryformatversion = 1
fsmonitor = "touch {tmp_path}/started; false"
sshCommand = "touch {tmp_path}/started; false"
pager = "touch {tmp_path}/started"
hooksPath = .git/hooks
[extensions]
partialClone = origin
[remote "origin"]
url = "{url}"
promisor = true
partialclonefilter = blob:none
uploadpack = "touch {tmp_path}/started"
[protocol]
allow = always
[protocol "ext"]
allow = always
[alias]
ls-files = "!touch {tmp_path}/started"
"""
    )
    program = f"from launcher.upload.git_rules import ignored_by_git as f; import pathlib; print(*f(pathlib.Path({str(repository)!r})))"
    words = ["strace", "-f", "-qq", "-e", "trace=execve", "-o", str(tmp_path / "trace")]
    done = subprocess.run([*words, sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "a.log\n"
    assert not (tmp_path / "started").exists()
    first, *started = re.findall(r'execve\("([^"]+)"', (tmp_path / "trace").read_text())
    assert first == sys.executable
    names = [path.rpartition("/")[2] for path in started]
    assert set(names) == {"sh", "git"}  # `sh` is ours, around each git


def test_git_that_does_not_answer_is_ended(repository, monkeypatch):
    """A pipe in place of a .gitignore would hold it for ever."""
    monkeypatch.setattr(git_rules, "ANSWER_S", 0.5)
    (repository / ".gitignore").unlink()
    os.mkfifo(repository / ".gitignore")
    with pytest.raises(UsageError, match=r"git did not list .* within 0\.5 s"):
        ignored_by_git(repository)


@pytest.mark.parametrize("name", ["requirements.txt", "uv.lock", "pyproject.toml"])
def test_packages_are_not_read_through_a_link_out_of_the_project(client, tmp_path, name):
    """What they say is shown, and sent to the host."""
    (tmp_path / "key").write_text("69e8d13fda204dcc74773004beb54ae49fac970d\n")
    (client.project / name).symlink_to(tmp_path / "key")
    client.script("print(1)\n")
    done = client.run("--dry-run", "--json", "--", "python", "train.py")
    assert done.returncode == 2
    assert "is a link out of the project" in done.stderr
    assert "69e8d13f" not in done.stdout + done.stderr


def test_packages_may_be_those_of_the_work_tree_that_the_folder_is_in(repository, monkeypatch):
    """As in a repository of several projects."""
    (repository / "requirements.txt").write_text("rich\n")
    (repository / "inner" / "requirements.txt").symlink_to("../requirements.txt")
    monkeypatch.chdir(repository / "inner")
    refuse_link_out(Path("requirements.txt"))
    (repository / "inner" / "pyproject.toml").symlink_to("/etc/passwd")
    with pytest.raises(BadFileError):
        refuse_link_out(repository / "inner" / "pyproject.toml")


def test_gits_memory_is_bounded(repository):
    """It holds the whole of a file of rules."""
    with (repository / ".gitignore").open("wb") as file:
        file.truncate(6 << 30)
    with pytest.raises(UsageError, match="git does not list"):
        ignored_by_git(repository)


@pytest.mark.parametrize("make", [pytest.param("fifo", marks=pytest.mark.long), "text"])
def test_a_picture_obeys_no_file_of_the_folder(client, monkeypatch, make):
    """matplotlib reads `matplotlibrc` in the working folder: a pipe would hold it, and a setting name a program."""
    monkeypatch.chdir(client.project)
    if make == "fifo":
        os.mkfifo("matplotlibrc")
    else:
        Path("matplotlibrc").write_text("savefig.dpi: 3000\ntext.usetex: True\n")
    png = draw("r", [Point(1, 0, step, float(step), "loss", 1.0 / step) for step in (1, 2)], ())
    assert png.startswith(b"\x89PNG")
    assert int.from_bytes(png[16:20], "big") < 2000


@pytest.mark.parametrize("damage", ["HEAD", "refs", "objects", "fifo", "empty"])
def test_a_damaged_repository_is_repaired_before_anything_is_sent(repository, damage):
    """What it ignores would travel."""
    dot_git = repository / ".git"
    if damage == "HEAD":
        (dot_git / "HEAD").write_bytes(b"")
    elif damage in ("refs", "objects"):
        shutil.rmtree(dot_git / damage)
    else:
        shutil.rmtree(dot_git)
        (os.mkfifo if damage == "fifo" else os.mkdir)(dot_git)
    with pytest.raises(UsageError, match="git does not list"):
        ignored_by_git(repository)


def test_a_repository_does_not_name_another_work_tree(repository):
    """Else git would list what it ignores there, and what it ignores here would travel."""
    (repository.parent / "other").mkdir()
    git(repository, "config", "core.worktree", str(repository.parent / "other"))
    assert ignored_by_git(repository) == frozenset({"a.log"})
