"""A file that changes while it is sent: it is sent once more, or named; a file that only grows is no obstacle."""

import json
import os

import pytest

CHANGES = """
import os
from launcher.upload import tree
write_files, left = tree.write_files, {times}

def change_and_write(sources, sink, meter):
    global left
    if left:
        left -= 1
        with open("progress.log", {how!r}) as file:
            file.write("changed %d" % left)
    write_files(sources, sink, meter)

tree.write_files = change_and_write
"""
"""Changes a file between its reading and its sending."""


@pytest.fixture
def changing(client, tmp_path):
    """Let a file of the project change at so many of the next sendings."""
    client.script("print(open('progress.log').read())")

    def change(times, how):
        (client.project / "progress.log").write_text("as it was read")
        (tmp_path / "sitecustomize.py").write_text(CHANGES.format(times=times, how=how))
        client.variables["PYTHONPATH"] = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
        return client

    return change


@pytest.mark.parametrize(
    ("times", "how", "arrives"),
    [(1, "r+", "changed 0 read"), (2, "a", "as it was read")],
    ids=["once", "grows"],
)
def test_a_file_that_changes_once_or_grows_is_sent(changing, times, how, arrives):
    """The host has what was read, by its SHA-256: the last reading of a changed file, the first of one that grows."""
    client = changing(times, how)
    run = client.detached("--", "python", "train.py")
    code = client.home / ".launch" / "runs" / run / "work" / "code"
    assert (code / "progress.log").read_text() == arrives


def test_a_file_that_changes_again_and_again_is_named(changing):
    """With an exit code that blames no host, and no run is left behind."""
    client = changing(9, "r+")
    done = client.run("--", "python", "train.py")
    assert done.returncode == 2
    assert "progress.log changed during the upload" in done.stderr
    assert "launch again" in done.stderr
    assert json.loads(client.ok("ps", "--json", "--host", "local"))["runs"] == []
