"""What `launch --version` says; the witness is git itself, asked for the checkout."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import launcher
from launcher import __version__
from launcher.upload.git_rules import commit_of

PACKAGE = Path(launcher.__file__).parent


def git(folder, *words):
    """What git says in a folder, without its user's settings."""
    env = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
    names = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    done = subprocess.run(
        ["git", *names, "-C", folder, *words], env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def place(tmp_path):
    """A folder with a commit, where the package is installed."""
    if shutil.which("git") is None:
        pytest.skip("no git here: apt-get install git")
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    return tmp_path


def said(folder):
    """What a copy of the package in a folder says of its version, asked from a folder without any."""
    script = "import sys; from launcher.cli import main; sys.argv = ['launch', '--version']; main()"
    env = {**os.environ, "PYTHONPATH": str(folder), "GIT_CEILING_DIRECTORIES": ""}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd="/", env=env, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def copied_to(folder):
    """Copy the package into a folder; return the folder."""
    shutil.copytree(PACKAGE, folder / "launcher", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_the_commit_of_a_checkout_is_said(place):
    """As git has it. Another commit is another version."""
    copied_to(place)
    for _ in range(2):
        assert (
            said(place)
            == f"launch {__version__}, checked out at {git(place, 'rev-parse', '--short=12', 'HEAD')}"
        )
        git(place, "commit", "-q", "--allow-empty", "-m", "next")


def test_a_project_whose_environment_has_launcher_is_no_checkout_of_it(place):
    """The version alone; or what its build has recorded."""
    (place / "env").mkdir()
    copied_to(place / "env")
    assert said(place / "env") == f"launch {__version__}"
    (place / "env" / "launcher" / "commit").write_text("0123456789ab\n")
    assert said(place / "env") == f"launch {__version__}, commit 0123456789ab"


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a folder to another user needs root")
def test_the_commit_of_another_user_s_checkout_is_said(place):
    """As on a shared computer: git itself refuses to look there without being asked for this folder."""
    commit = git(place, "rev-parse", "--short=12", "HEAD")
    copied_to(place)
    for path in (place, *place.rglob("*")):
        os.chown(path, 65534, 65534)
    assert said(place) == f"launch {__version__}, checked out at {commit}"


def test_nothing_that_a_checkout_names_is_run(place, tmp_path_factory):
    """Neither a monitor, nor a hook, nor an alias or a pager."""
    mark = tmp_path_factory.mktemp("mark") / "ran"
    for key in (
        "core.fsmonitor",
        "core.pager",
        "alias.rev-parse",
        "core.sshCommand",
        "core.alternateRefsCommand",
    ):
        git(place, "config", key, f"touch {mark};")
    hook = place / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {mark}\n")
    hook.chmod(0o755)
    assert commit_of(place) == git(place, "-c", "core.fsmonitor=", "rev-parse", "--short=12", "HEAD")
    assert not mark.exists()
