"""When an environment counts. Witness: what a copy of the disk holds, as after a power cut."""

import contextlib
import hashlib
import os
import shutil
import subprocess

import pytest
from testbed.client import missing

from launcher.agent.making import environment_build, environment_seal
from launcher.agent.system import process

PACKAGES = {"python": "3.11", "torch": "2.13.0+cpu"}


def made(path):
    """An environment of one file and a Python."""
    (path / "bin").mkdir(parents=True)
    (path / "bin" / "python").symlink_to("/bin/sh")
    (path / "libtorch.so").write_bytes(bytes(range(256)) * 40_000)
    return path


@pytest.fixture
def after_a_boot(monkeypatch):
    """Ask as after the next start of this host."""
    ours = process.boot_id()
    ids = {"now": ours}
    monkeypatch.setattr(process, "boot_id", lambda: ids["now"])
    return lambda: ids.update(now="of another boot")


def test_an_environment_counts_at_once_but_after_a_crash_only_if_it_was_settled(tmp_path, after_a_boot):
    """It is removed as half-made if the host stopped before its files were on the disk."""
    settled, sealed = (made(tmp_path / "envs" / process.host_id() / name) for name in ("0" * 12, "1" * 12))
    for path in (settled, sealed):
        environment_seal.seal(str(path), PACKAGES)
    environment_seal.settle(str(settled))
    assert [environment_build.is_whole(str(path)) for path in (settled, sealed)] == [True, True]
    assert [environment_seal.is_settled(str(path)) for path in (settled, sealed)] == [True, False]
    after_a_boot()
    assert [environment_build.is_whole(str(path)) for path in (settled, sealed)] == [True, False]
    assert list(environment_build.half_made(str(tmp_path))) == [str(sealed)]
    environment_seal.settle(str(sealed))
    assert not environment_build.is_whole(str(sealed)), "to settle is not to seal"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1, "boot": ""}'])
def test_a_torn_marker_does_not_count(tmp_path, text):
    """A host that stops may leave a file that is empty, or a part of it."""
    path = made(tmp_path / "one")
    (path / "environment.json").write_text(text)
    assert not environment_build.is_whole(str(path))


def test_a_disk_that_fails_leaves_it_unsettled(tmp_path, monkeypatch):
    """The marker is replaced only after the file system was flushed."""
    path = made(tmp_path / "one")
    environment_seal.seal(str(path), PACKAGES)

    def failing(_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(environment_seal, "sync_file_system", failing)
    with pytest.raises(OSError, match="Input/output"):
        environment_seal.settle(str(path))
    assert not environment_seal.is_settled(str(path))


def test_a_removed_environment_is_not_settled(tmp_path):
    """Not even if its folder is still there."""
    path = made(tmp_path / "one")
    environment_seal.seal(str(path), PACKAGES)
    environment_seal.unseal(str(path))
    environment_seal.settle(str(path))
    assert not environment_build.is_whole(str(path))


@pytest.fixture
def disk(tmp_path):
    """A disk that is a file, with ext4: it holds what was written to the disk, and nothing that is only in memory."""
    if os.geteuid() != 0 or shutil.which("mkfs.ext4", path="/usr/sbin:/sbin:/usr/bin") is None:
        missing("a disk of its own needs root and mkfs.ext4")
    image = tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(128 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True, env={"PATH": "/usr/sbin:/sbin:/usr/bin"})
    with mounted(image) as folder:
        yield image, folder


@contextlib.contextmanager
def mounted(image):
    """Mount a disk for a while; skip the test where that is not possible."""
    folder = image.with_suffix(".mounted")
    folder.mkdir()
    words = ["mount", "-o", "loop", image, folder]
    done = subprocess.run(words, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        missing(f"no disk can be mounted here: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", folder], check=True)
    folder.rmdir()


@pytest.mark.testbed
def test_after_a_power_cut_an_environment_is_whole_or_does_not_count(disk, tmp_path, after_a_boot):
    """The power is cut after the seal, and after it was settled: each time a copy of the disk is mounted."""
    image, folder = disk
    path = made(folder / "env")
    sha256 = hashlib.sha256((path / "libtorch.so").read_bytes()).digest()
    environment_seal.seal(str(path), PACKAGES)
    shutil.copy(image, tmp_path / "cut-1")
    environment_seal.settle(str(path))
    shutil.copy(image, tmp_path / "cut-2")
    after_a_boot()
    with mounted(tmp_path / "cut-1") as left:
        assert not environment_build.is_whole(str(left / "env"))
    with mounted(tmp_path / "cut-2") as left:
        assert environment_build.is_whole(str(left / "env"))
        assert hashlib.sha256((left / "env" / "libtorch.so").read_bytes()).digest() == sha256
