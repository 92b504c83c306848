"""The files of a run's copy: opened through no link, regular files only, and none without an end."""

import contextlib
import hashlib
import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from launcher.base.client_files import UnreadableError
from launcher.copy.run_files import MAX_LINE, RunFiles, lines_of

RUN = "0101-sft-w8q2"
PATH = "0002/log.txt"


@pytest.fixture(autouse=True)
def waits_for_nothing():
    """End a test that waits for a pipe's other end."""
    signal.alarm(60)
    yield
    signal.alarm(0)


@pytest.fixture
def victim(tmp_path):
    """A folder of the user's outside of the runs."""
    folder = tmp_path / "home"
    (folder / "below").mkdir(parents=True)
    (folder / "key").write_text("mine\n")
    (folder / "below" / "log.txt").write_text("mine too\n")
    return folder


@pytest.fixture
def files(tmp_path):
    """The files of a run whose folder is there."""
    made = RunFiles(tmp_path / "runs" / RUN)
    made.folder.mkdir(parents=True)
    return made


def contents(folder):
    """Return what is below a folder: kinds, sizes, links' targets and digests; no file's time of reading."""
    found = {}
    for path in sorted(folder.rglob("*")):
        about = path.lstat()
        what = hashlib.sha256(path.read_bytes()).hexdigest() if stat.S_ISREG(about.st_mode) else None
        found[str(path)] = (stat.S_IFMT(about.st_mode), about.st_mtime_ns, about.st_nlink, what)
    return found


def make_socket(path):
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as made, contextlib.chdir(path.parent):
        made.bind(path.name)


def make_device(path):
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root makes devices")


def make_link_above(path, target):
    path.parent.rmdir()
    path.parent.symlink_to(target)


OBSTACLES = {
    "a link to a file": lambda path, victim: path.symlink_to(victim / "key"),
    "a link to a folder": lambda path, victim: path.symlink_to(victim / "below"),
    "a link to nothing": lambda path, victim: path.symlink_to(victim / "new"),
    "a link to an endless file": lambda path, _: path.symlink_to("/dev/zero"),
    "a link above": lambda path, victim: make_link_above(path, victim / "below"),
    "a pipe": lambda path, _: os.mkfifo(path),
    "a socket": lambda path, _: make_socket(path),
    "a device": lambda path, _: make_device(path),
    "a folder": lambda path, _: path.mkdir(),
}
REFUSED = {
    "read": lambda files: files.read(PATH),
    "open": lambda files: files.open(PATH),
    "open to change": lambda files: files.open(PATH, "r+b"),
    "open anew": lambda files: files.open(PATH, "x+b"),
    "open to write": lambda files: files.open(PATH, "wb"),
    "open to append": lambda files: files.open(PATH, "ab"),
}
"""What is refused for anything but a regular file."""
OTHERS = {
    "status": lambda files: files.status(PATH),
    "is_folder": lambda files: files.is_folder(PATH),
    "exists": lambda files: files.exists(PATH),
    "names": lambda files: files.names(PATH),
    "names above": lambda files: files.names("0002"),
    "folders": lambda files: files.folders(PATH),
    "numbered": lambda files: files.numbered(),
    "walk": lambda files: list(files.walk()),
    "read_json": lambda files: files.read_json(PATH),
    "make_folder": lambda files: files.make_folder(PATH),
    "make_folder below": lambda files: files.make_folder(f"{PATH}/below"),
    "write": lambda files: files.write(PATH, b"theirs", durably=True),
    "write below": lambda files: files.write(f"{PATH}/key", b"theirs"),
    "rename": lambda files: files.rename(PATH, "0002/log"),
    "rename onto it": lambda files: files.rename("new", PATH),
    "rename into it": lambda files: files.rename("new", f"{PATH}/new"),
    "remove": lambda files: files.remove(PATH),
    "remove below": lambda files: files.remove(f"{PATH}/key"),
    "remove_empty": lambda files: files.remove_empty(PATH),
    "remove_tree": lambda files: files.remove_tree(PATH),
    "remove_tree above": lambda files: files.remove_tree("0002"),
    "remove_tree of all": lambda files: files.remove_tree(),
    "touch": lambda files: files.touch(PATH),
    "sync": lambda files: files.sync(PATH),
    "sync_names": lambda files: files.sync_names([PATH]),
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
@pytest.mark.parametrize("call", [*REFUSED, *OTHERS])
def test_nothing_outside_of_a_run_is_opened_or_changed(files, victim, obstacle, call):
    """Whatever lies in a file's place. An error names the file and says why."""
    files.make_folder("0002")
    files.write("new", b"theirs")
    OBSTACLES[obstacle](files.folder / PATH, victim)
    before = contents(victim)
    result = error = None
    try:
        result = {**REFUSED, **OTHERS}[call](files)
    except OSError as refused:
        error = refused
    assert contents(victim) == before
    assert "mine" not in repr(result)
    if error is not None:
        assert str(error.filename).startswith(str(files.folder))
        assert error.strerror
        assert Path(files.in_the_way(error.filename)).is_relative_to(files.folder)
    if call in REFUSED:
        assert isinstance(error, FileExistsError if call == "open anew" else UnreadableError) or (
            obstacle == "a link above"
        )


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_lies_in_a_file_s_place_is_no_file(files, victim, obstacle):
    """Nor a folder, unless it is one."""
    files.make_folder("0002")
    OBSTACLES[obstacle](files.folder / PATH, victim)
    assert not files.is_file(PATH)
    assert files.is_folder(PATH) == (obstacle == "a folder")
    assert files.exists(PATH) == (obstacle != "a link above")
    assert files.numbered() == ([] if obstacle == "a link above" else ["0002"])
    assert files.read_json(PATH) == {}


@pytest.mark.parametrize("obstacle", ["a link to a file", "a link to nothing", "a pipe", "a socket"])
def test_a_file_that_is_replaced_whole_takes_the_place_of_the_link_itself(files, victim, obstacle):
    """So the record is whole again."""
    files.make_folder("0002")
    OBSTACLES[obstacle](files.folder / PATH, victim)
    files.write(PATH, b"ours")
    assert files.read(PATH) == b"ours"
    assert not (victim / "new").exists()


@pytest.mark.parametrize("mode", ["r+b", "wb", "ab"])
def test_a_file_that_is_another_one_too_is_not_written(files, victim, mode):
    """A hard link, as an archive may hold. It is read, and replaced whole."""
    files.make_folder("0002")
    os.link(victim / "key", files.folder / PATH)
    with pytest.raises(UnreadableError, match="has a second name"):
        files.open(PATH, mode)
    assert files.read(PATH) == b"mine\n"
    files.write(PATH, b"ours")
    assert (victim / "key").read_text() == "mine\n"


@pytest.mark.parametrize("verb", ["read", "write", "make_folder", "names", "remove_tree", "touch"])
def test_the_folder_of_a_run_is_no_link_either(files, victim, verb):
    """The folder above it is the user's own choice, and may be one."""
    files.folder.rmdir()
    files.folder.symlink_to(victim)
    before = contents(victim)
    call = getattr(files, verb)
    paths = {"make_folder": "below/new", "names": "below", "remove_tree": "", "touch": "key"}
    with contextlib.nullcontext() if verb == "names" else pytest.raises(UnreadableError) as raised:
        assert call(paths.get(verb, "key"), *([b"theirs"] if verb == "write" else [])) == []
    if verb != "names":
        assert files.in_the_way(raised.value.filename) == str(files.folder)
    assert contents(victim) == before
    linked = files.folder.parent.with_name("linked")
    linked.symlink_to(files.folder.parent)
    (files.folder.parent / "0101-sft-aaaa").mkdir()
    RunFiles(linked / "0101-sft-aaaa").write(PATH, b"ours")


def test_a_larger_file_than_is_allowed_is_not_read(files):
    """Nor one that has no bytes on the disk."""
    files.write("plan.json", b"{}")
    assert files.read("plan.json", 2) == b"{}"
    with pytest.raises(UnreadableError, match="has more than 1 bytes"):
        files.read("plan.json", 1)
    with pytest.raises(UnreadableError, match="has more than 1 bytes"):
        files.open("plan.json", most=1)
    os.truncate(files.folder / "plan.json", 1 << 40)
    assert files.read_json("plan.json") == {}


@pytest.mark.parametrize(
    "path", ["../key", "0002/../../key", "/etc/passwd", Path("/etc/passwd"), "a\0b", "x" * 300]
)
def test_a_path_that_no_run_has_leads_nowhere(files, path):
    """As a record may name one."""
    assert not files.exists(path)
    assert files.names(path) == []
    assert files.read_json(path) == {}
    for call in (files.read, files.remove, files.make_folder):
        with pytest.raises(OSError):
            call(path)


def test_a_run_s_own_files_are_read_written_and_removed(files):
    """By paths below its folder, or whole ones."""
    files.write("artifacts/adapter/weights", b"w", durably=True)
    files.write(files.folder / "0001" / "state.json", b'{"state": "running"}')
    (files.folder / "0002").mkdir()
    (files.folder / "artifacts" / "link").symlink_to("adapter")
    assert files.numbered() == ["0001", "0002"]
    assert files.read_json("0001/state.json") == {"state": "running"}
    assert sorted(path for path, _ in files.walk("artifacts")) == [
        "artifacts/adapter/weights",
        "artifacts/link",
    ]
    with files.open("0002/log.txt", "ab") as file:
        file.write(b"one\n")
    with files.open("0002/log.txt", "r+b") as file:
        file.seek(0, os.SEEK_END)
        file.write(b"two\n")
    assert files.read("0002/log.txt") == b"one\ntwo\n"
    with files.open("0002/log.txt", "wb") as file:
        file.write(b"3\n")
    assert files.read("0002/log.txt") == b"3\n"
    files.rename("artifacts/adapter", "artifacts/adapter.yours")
    files.sync_names(["artifacts/adapter.yours/weights"])
    assert files.is_file("artifacts/adapter.yours/weights", 1)
    files.remove_tree("artifacts")
    files.remove("none")
    files.remove_tree("none")
    files.remove("0002/log.txt")
    files.remove_empty("0002")
    assert files.folders() == ["0001"]
    files.remove_tree()
    assert not files.folder.exists()


def test_what_the_disk_refuses_leaves_the_old_file_and_nothing_beside_it(tmp_path, small_disk):
    """The error names the file."""
    files = RunFiles(small_disk / RUN)
    files.write("state.json", b"old")
    with pytest.raises(OSError, match="No space left") as raised:
        files.write("state.json", b"x" * (8 << 20))
    assert raised.value.filename == str(small_disk / RUN / "state.json")
    assert files.names() == ["state.json"]
    assert files.read("state.json") == b"old"


def test_a_line_without_an_end_is_read_in_pieces(tmp_path):
    """A log of a clone may be one line of gigabytes."""
    path = tmp_path / "log.txt"
    path.write_bytes(b"first\n" + b"x" * (MAX_LINE + 5) + b"\nlast")
    with path.open("rb") as file:
        assert [len(line) for line in lines_of(file)] == [6, MAX_LINE, 6, 4]
