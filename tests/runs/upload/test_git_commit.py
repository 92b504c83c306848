"""The git commit of what is sent; the witness is git itself."""

import shutil
import subprocess

import pytest

from launcher.upload.git_rules import sent_commit

if shutil.which("git") is None:
    pytest.skip("no git here: apt-get install git", allow_module_level=True)
COMMITTING = ("-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-qm", "x")
SCRIPT = "import os\nprint('commit', os.environ.get('LAUNCH_COMMIT'), os.environ.get('LAUNCH_DIRTY'))\n"


def git(folder, *words):
    """Run git there; return what it printed."""
    done = subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """A repository with two files, one of them in a folder."""
    (tmp_path / "tree" / "inner").mkdir(parents=True)
    for name in ("a.py", "inner/b.py"):
        (tmp_path / "tree" / name).write_text("1\n")
    git(tmp_path / "tree", "init", "-q")
    git(tmp_path / "tree", "add", "-A")
    git(tmp_path / "tree", *COMMITTING)
    return tmp_path / "tree"


@pytest.mark.parametrize(
    ("folder", "changed", "dirty"),
    [
        (".", None, False),
        (".", "a.py", True),
        (".", "new.py", False),
        ("inner", None, False),
        ("inner", "a.py", False),
        ("inner", "inner/b.py", True),
    ],
)
def test_a_changed_tracked_file_that_is_sent_makes_it_dirty(repository, folder, changed, dirty):
    """A change elsewhere in the repository is not sent; a new file is none of the commit's."""
    if changed is not None:
        (repository / changed).write_text("2\n")
    found = sent_commit(repository / folder)
    assert (found.id, found.dirty) == (git(repository, "rev-parse", "HEAD"), dirty)


def test_a_staged_or_deleted_file_makes_it_dirty(repository):
    """Neither is in the commit."""
    (repository / "a.py").unlink()
    assert sent_commit(repository).dirty
    git(repository, "add", "-A")
    assert sent_commit(repository).dirty


def test_a_folder_of_which_the_repository_has_nothing_has_no_commit(repository, tmp_path):
    """As a project below a home whose settings are in git."""
    (repository / "untracked").mkdir()
    (repository / "untracked" / "c.py").touch()
    assert sent_commit(repository / "untracked") is None
    assert sent_commit(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert sent_commit(tmp_path) is None  # no commit yet


@pytest.mark.parametrize("name", ["f", "a.b", 'q"x', "with space"])
@pytest.mark.parametrize("kind", ["clean", "process"])
def test_no_filter_of_a_repository_is_run(repository, tmp_path, name, kind):
    """A copied repository has settings of its own. git itself would run the filter: that shows that it is asked here."""
    (repository / ".gitattributes").write_text("*.py filter=f\n")
    git(repository, "config", f"filter.{name}.{kind}", f"touch {tmp_path}/ran; cat")
    git(repository, "config", f"filter.{name}.required", "true")
    if name != "f":
        git(repository, "config", f"filter.f.{kind}", f"touch {tmp_path}/ran; cat")
    (repository / "a.py").write_text("2\n")
    found = sent_commit(repository)
    assert found.dirty
    assert not (tmp_path / "ran").exists()
    subprocess.run(["git", "-C", str(repository), "status"], capture_output=True, check=False)
    assert (tmp_path / "ran").exists()


def test_a_filter_that_cannot_be_emptied_hides_the_commit(repository, tmp_path):
    """`git -c a=b.clean=` would set the key `a`."""
    (repository / ".gitattributes").write_text("*.py filter=a=b\n")
    git(repository, "config", "filter.a=b.clean", f"touch {tmp_path}/ran; cat")
    (repository / "a.py").write_text("2\n")
    assert sent_commit(repository) is None
    assert not (tmp_path / "ran").exists()


def test_a_run_gets_the_commit_of_its_code(client):
    """In its variables and in its plan. Without a repository it gets none."""
    client.script(SCRIPT)
    assert "commit None None" in client.run("--", "python", "train.py").stdout
    git(client.project, "init", "-q")
    git(client.project, "add", "train.py")
    git(client.project, *COMMITTING)
    commit = git(client.project, "rev-parse", "HEAD")
    assert f"commit {commit} 0" in client.run("--", "python", "train.py").stdout
    client.script(SCRIPT + "# changed\n")
    done = client.run("--", "python", "train.py")
    assert f"commit {commit} 1" in done.stdout
