"""The folder that travels: what goes, what stays, what each must be on arrival; the same tree gives the same bytes."""

import hashlib
import io
import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from launcher.base.client_files import open_regular
from launcher.base.meter import Meter
from launcher.errors import UsageError
from launcher.upload.digests import Digests
from launcher.upload.folder_walk import WalkedFile
from launcher.upload.tree import CodeTree, SizedFile, collect, manifest, write_files
from launcher.values.upload_selection import ExclusionReason


@pytest.fixture
def folder(tmp_path):
    """A project's folder, resolved as the command line does."""
    path = tmp_path / "project"
    path.mkdir()
    return path.resolve()


def put(path, text="x"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def git(folder, *words):
    person = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "protocol.file.allow=always"]
    subprocess.run(["git", *person, *words], cwd=folder, check=True, capture_output=True)


def taken(folder, sources):
    return collect(folder, sources, {str(folder / "runs"): ExclusionReason.RUNS}, Digests(folder))


def collected(folder, **local):
    """What travels: the folder, and the paths of `model`, `data_train`, … as the job's file would name them."""
    return taken(folder, {key.replace("_", "."): folder / value for key, value in local.items()})


def names(tree):
    """The links and files that travel, with the targets of the links."""
    return {entry.path: entry.link for entry in tree.entries if entry.folder is None}


def left_out(tree):
    return {one.path: one.why for one in tree.left_out}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of digests of the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def ignore(_moved):
    """Take the progress of a transfer."""


def said(folder, tree):
    return manifest(tree, Digests(folder), ignore)


def send(path, size, sink):
    write_files([SizedFile(path.name, str(path), size)], sink, Meter(size, ignore))


def test_in_a_work_tree_tracked_and_unignored_files_travel(folder):
    """What git ignores stays behind, what it has not been told of does not; a tracked file goes even if ignored."""
    git(folder, "init", "-q")
    put(folder / ".gitignore", "*.bin\n")
    for name in ("tracked", "deep/untracked", "ignored.bin", "forced.bin"):
        put(folder / name)
    git(folder, "add", "tracked")
    git(folder, "add", "-f", "forced.bin")
    assert set(names(collected(folder))) == {
        "code/.gitignore",
        "code/deep/untracked",
        "code/forced.bin",
        "code/tracked",
    }


def test_a_folder_within_a_work_tree_is_taken_by_the_same_rules(folder):
    """A job's code may be a part of a repository; names are relative to that part."""
    git(folder, "init", "-q")
    put(folder / ".gitignore", "*.bin\n")
    put(folder / "part" / "a")
    put(folder / "part" / "b.bin")
    put(folder / "beside")
    assert set(names(collected(folder / "part"))) == {"code/a"}


def test_a_tracked_file_that_was_deleted_is_not_missed(folder):
    """The work tree as it is now travels, not the index."""
    git(folder, "init", "-q")
    put(folder / "gone")
    put(folder / "here")
    git(folder, "add", ".")
    (folder / "gone").unlink()
    assert set(names(collected(folder))) == {"code/here"}


def test_a_tracked_folder_that_became_a_file_travels_as_a_file(folder):
    """Names that git still lists below it are not there any more."""
    git(folder, "init", "-q")
    put(folder / "d" / "f")
    git(folder, "add", ".")
    (folder / "d" / "f").unlink()
    (folder / "d").rmdir()
    put(folder / "d")
    assert names(collected(folder)) == {"code/d": None}


def test_a_tracked_folder_that_became_a_link_travels_as_a_link(folder):
    """Nothing is sent through the link: the host could not make both."""
    git(folder, "init", "-q")
    put(folder / "d" / "f")
    git(folder, "add", ".")
    (folder / "d").rename(folder / "e")
    (folder / "d").symlink_to("e")
    assert names(collected(folder)) == {"code/d": "e", "code/e/f": None}


def test_a_repository_in_the_repository_travels_with_its_own_rules(folder):
    """Git lists it as a folder only; its files come along, what it ignores does not, and `.git` never does."""
    git(folder, "init", "-q")
    inner = folder / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    put(inner / ".gitignore", "no\n")
    put(inner / "no")
    put(inner / "yes")
    assert set(names(collected(folder))) == {"code/inner/.gitignore", "code/inner/yes"}


@pytest.fixture
def with_submodule(folder, tmp_path):
    """A project with a submodule that is checked out."""
    library = tmp_path / "library"
    put(library / "lib.py")
    git(library, "init", "-q")
    git(library, "add", ".")
    git(library, "commit", "-qm", "x")
    git(folder, "init", "-q")
    git(folder, "submodule", "add", str(library), "sub")
    git(folder, "commit", "-qm", "x")
    return folder


def test_a_submodule_travels(with_submodule):
    """The files of a submodule are the project's."""
    assert set(names(collected(with_submodule))) == {"code/.gitmodules", "code/sub/lib.py"}


def test_a_submodule_that_was_never_checked_out_is_an_empty_folder(with_submodule, tmp_path):
    """A clone without `--recurse-submodules` launches too."""
    clone = (tmp_path / "clone").resolve()
    git(tmp_path, "clone", "-q", str(with_submodule), str(clone))
    assert set(names(collected(clone))) == {"code/.gitmodules"}


def test_a_plain_folder_travels_whole_but_for_caches(folder):
    """Without git every file goes, hidden ones too; byte code stays."""
    for name in ("a", ".hidden", "deep/er/b", "__pycache__/c.pyc", "deep/__pycache__/d.pyc"):
        put(folder / name)
    assert set(names(collected(folder))) == {"code/.hidden", "code/a", "code/deep/er/b"}


def test_without_git_installed_a_work_tree_is_a_plain_folder(folder, monkeypatch):
    """No git, no rules: every file goes, `.git` does not."""
    git(folder, "init", "-q")
    put(folder / "a")
    monkeypatch.setenv("PATH", str(folder))
    assert set(names(collected(folder))) == {"code/a"}


@pytest.mark.parametrize("rule", ["build", "build/", "*\n!*.py", "/build/part"])
def test_a_folder_that_git_ignores_as_a_whole_travels_whole(folder, rule):
    """Who names it as the code wants its files: not one of them would travel by git's rules."""
    git(folder, "init", "-q")
    put(folder / ".gitignore", f"{rule}\n")
    put(folder / "build" / "part" / "train.py")
    put(folder / "build" / "part" / "deep" / "data.bin")
    assert set(names(collected(folder / "build" / "part"))) == {"code/deep/data.bin", "code/train.py"}


@pytest.mark.parametrize("is_top", [True, False])
def test_a_folder_whose_own_rules_ignore_all_but_some_keeps_its_rules(folder, is_top):
    """`*` and `!*.py` in a folder speak of its files, not of the folder, whether or not another repository is around."""
    git(folder, "init", "-q")
    part = folder / "ignored" / "part" if is_top else folder / "part"
    put(part / ".gitignore", "*\n!*.py\n")
    put(part / "train.py")
    put(part / "data.bin")
    if is_top:
        put(folder / ".gitignore", "ignored\n")
        git(part, "init", "-q")
    assert set(names(collected(part))) == {"code/train.py"}


def test_nothing_called_git_travels_with_a_plain_folder(with_submodule):
    """A submodule's `.git` is a file with a path of this machine; a worktree's is one too."""
    found = names(collected(with_submodule, data_train="sub", model="."))
    assert {"data/train/sub/lib.py", "data/model/project/sub/lib.py"} <= set(found)
    assert not [name for name in found if ".git" in name.split("/")]


@pytest.mark.parametrize("has_git", [True, False])
def test_the_mirror_of_our_own_runs_never_travels(folder, has_git):
    """Not even where git would track it, nor as a part of the data."""
    if has_git:
        git(folder, "init", "-q")
    put(folder / "a")
    put(folder / "runs" / "0101-x-aaaa" / "log.txt")
    put(folder / "runs-of-mine" / "b")
    found = set(names(collected(folder, data_train=".")))
    assert {"code/a", "code/runs-of-mine/b"} <= found
    assert not [name for name in found if "log.txt" in name]


def test_links_inside_are_kept_and_absolute_ones_made_relative(folder):
    """A link to a file, a folder, and one not there: all as they are, wherever the folder will lie."""
    put(folder / "deep" / "target")
    (folder / "relative").symlink_to("deep/target")
    (folder / "absolute").symlink_to(folder / "deep" / "target")
    (folder / "deep" / "up").symlink_to(folder / "deep")
    (folder / "dangling").symlink_to("nowhere")
    tree = collected(folder)
    assert tree.left_out == []
    links = {name: link for name, link in names(tree).items() if link is not None}
    assert links == {
        "code/absolute": "deep/target",
        "code/dangling": "nowhere",
        "code/deep/up": ".",
        "code/relative": "deep/target",
    }


@pytest.mark.parametrize("target", ["/etc/passwd", "../beside", "..", "../project-two/x", "/"])
def test_links_out_are_left_out_with_a_reason(folder, target):
    """A link that means nothing on the host is named, not sent."""
    (folder / "out").symlink_to(target)
    tree = collected(folder)
    assert tree.entries == []
    assert [(one.path, one.why, one.link) for one in tree.left_out] == [
        ("out", ExclusionReason.LINK_OUT, target)
    ]


def test_a_link_that_leaves_by_way_of_another_is_left_out(folder):
    """`here/..` is outside, whatever it looks like."""
    (folder / "here").symlink_to(".")
    (folder / "sly").symlink_to("here/../beside")
    tree = collected(folder)
    assert set(names(tree)) == {"code/here"}
    assert left_out(tree) == {"sly": ExclusionReason.LINK_OUT}


def test_what_is_no_file_is_left_out_with_a_reason(folder):
    """A named pipe would hang whoever reads it."""
    os.mkfifo(folder / "pipe")
    tree = collected(folder)
    assert (tree.entries, left_out(tree)) == ([], {"pipe": ExclusionReason.SPECIAL})


def test_the_manifest_says_content_mode_and_link(folder):
    """A program stays one, and what others may not read stays so."""
    put(folder / "tool", "#!/bin/sh\n").chmod(0o700)
    put(folder / "text", "words").chmod(0o604)
    (folder / "link").symlink_to("text")
    assert said(folder, collected(folder)) == {
        "code/link": {"link": "text"},
        "code/text": {"sha256": hashlib.sha256(b"words").hexdigest(), "size": 5, "mode": 0o604},
        "code/tool": {"sha256": hashlib.sha256(b"#!/bin/sh\n").hexdigest(), "size": 10, "mode": 0o700},
    }


def test_an_unchanged_file_is_not_read_again(folder, monkeypatch):
    """A file that looks as it did is what it was; one that was written to since is hashed anew."""
    put(folder / "same", "same")
    changed = put(folder / "changed", "before")
    later = time.time_ns() + 10_000_000_000
    monkeypatch.setattr("launcher.upload.digests.time.time_ns", lambda: later)
    digests = Digests(folder)
    first = manifest(collected(folder), digests, ignore)
    digests.save()
    changed.write_text("behind")
    opened = []
    real = open_regular
    monkeypatch.setattr(
        "launcher.upload.digests.open_regular",
        lambda path, flags: opened.append(str(path)) or real(path, flags),
    )
    second = said(folder, collected(folder))
    monkeypatch.undo()
    assert str(changed) in opened
    assert str(folder / "same") not in opened
    assert second["code/same"] == first["code/same"]
    assert second["code/changed"]["sha256"] == hashlib.sha256(b"behind").hexdigest()


@pytest.mark.parametrize(("waited_s", "expected"), [(0.5, b"old"), (1.5, b"new")])
def test_a_look_at_a_file_counts_for_a_second(folder, monkeypatch, waited_s, expected):
    """A launch may wait for hours between the walk and its manifest: for an answer, or for a card."""
    path = put(folder / "train.py", "old")
    began, later = time.monotonic(), time.time_ns() + 10_000_000_000
    monkeypatch.setattr("launcher.upload.digests.time.time_ns", lambda: later)
    monkeypatch.setattr("launcher.upload.digests.time.monotonic", lambda: began)
    digests = Digests(folder)
    tree = collect(folder, {}, {}, digests)
    path.write_text("new")
    monkeypatch.setattr("launcher.upload.digests.time.monotonic", lambda: began + waited_s)
    sent = manifest(tree, digests, ignore)["code/train.py"]
    assert sent["sha256"] == hashlib.sha256(expected).hexdigest()


def test_a_file_younger_than_its_file_systems_tick_is_not_trusted(folder):
    """Two writes within one tick of the clock look the same: such a file is hashed each time."""
    path = put(folder / "young", "one")
    digests = Digests(folder)
    manifest(collected(folder), digests, ignore)
    digests.save()
    before = path.stat()
    path.write_text("two")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert said(folder, collected(folder))["code/young"]["sha256"] == hashlib.sha256(b"two").hexdigest()


def test_a_file_that_grows_while_it_is_read_counts_as_it_was(folder):
    """A log that a program writes: its first bytes are sent, with their digest."""
    path = put(folder / "log", "x" * 10)

    def grow(_count):
        with path.open("a") as file:
            file.write("more")

    known, status = Digests(folder).read(str(path), grow)
    assert (known.sha256, status.st_size) == (hashlib.sha256(b"x" * 10).hexdigest(), 10)


@pytest.mark.parametrize("spoilt", [b"", b"[]", b'{"x": 1}', b"\xff", b'{"%s": ["a", 2]}'])
def test_a_spoilt_cache_is_forgotten(folder, tmp_path, spoilt):
    """It is a cache: what it says is checked against the file, and what it cannot say is asked of the file."""
    path = put(folder / "a", "words")
    digests = Digests(folder)
    manifest(collected(folder), digests, ignore)
    digests.save()
    for file in (tmp_path / "cache").rglob("*.json"):
        file.write_bytes(spoilt.replace(b"%s", os.fsencode(path)))
    assert said(folder, collected(folder))["code/a"]["sha256"] == hashlib.sha256(b"words").hexdigest()


@pytest.mark.parametrize("has_git", [True, False])
@pytest.mark.parametrize("name", [b"\xff\xfe.txt", "größe 名前".encode(), b"a\nb", b"-rf $(x) ';\"", b"a\\b"])
def test_any_name_that_a_file_system_takes_travels(folder, has_git, name):
    """Names are bytes: not UTF-8, line breaks, what a shell would take for its own."""
    if has_git:
        git(folder, "init", "-q")
    put(folder / os.fsdecode(name), "x")
    tree = collected(folder)
    assert [os.fsencode(entry.path) for entry in tree.entries] == [b"code/" + name]
    assert list(said(folder, tree)) == [entry.path for entry in tree.entries]


def test_a_model_and_data_that_lie_here_travel_under_data(folder, tmp_path):
    """A folder whole, whatever git ignores, a file alone; each below its key and under its own name."""
    git(folder, "init", "-q")
    put(folder / ".gitignore", "weights\n*.jsonl\n")
    put(folder / "weights" / "model.safetensors")
    put(tmp_path / "mine.jsonl")
    found = set(names(collected(folder, model="./weights/", data_train="../mine.jsonl")))
    assert found == {"code/.gitignore", "data/model/weights/model.safetensors", "data/train/mine.jsonl"}


@pytest.mark.parametrize("value", [".", "..", "./", "./sub/.."])
def test_every_path_of_a_tree_is_one_that_a_host_takes(folder, value):
    """However a folder is written, nothing in its paths leads up or is empty."""
    put(folder / "a")
    put(folder / "sub" / "b")
    paths = [
        entry.path
        for entry in collected(folder / "sub" if value == ".." else folder, data_train=value).entries
    ]
    assert any(path.startswith("data/train/") for path in paths)
    assert not [path for path in paths if set(path.split("/")) & {"", ".", ".."}]


@pytest.mark.parametrize(
    ("value", "top"),
    [
        (".", "sub"),
        ("./", "sub"),
        ("..", "project"),
        ("deep/..", "sub"),
        ("link/..", "beside"),
        ("link", "link"),
        ("deep/link/.", "link"),
    ],
)
def test_what_lies_here_travels_under_its_name_or_under_its_folders_own(folder, value, top):
    """A path without a name of its own, as `.` is, has that of the folder that it means."""
    put(folder / "sub" / "deep" / "f")
    put(folder / "beside" / "inner" / "f")
    (folder / "sub" / "link").symlink_to("../beside/inner")
    (folder / "sub" / "deep" / "link").symlink_to("../../beside/inner")
    found = names(taken(folder / "sub", {"data.train": folder / "sub" / value}))
    tops = {"/".join(name.split("/")[:3]) for name in found if name.startswith("data/")}
    assert tops == {f"data/train/{top}"}


def test_a_home_as_data_is_named_after_its_folder(folder, monkeypatch):
    """`~` is spelt out where the job is read; its name is the folder's."""
    put(folder / "me" / "f")
    monkeypatch.setenv("HOME", str(folder / "me"))
    found = names(taken(folder / "me", {"data.train": folder / Path("~").expanduser()}))
    assert "data/train/me/f" in found


def test_the_same_tree_gives_the_same_bytes(folder):
    """No times, owners or order of the folder get into the stream."""
    for name in ("b", "a", "c/d"):
        put(folder / name, name)
    (folder / "l").symlink_to("a")
    first = json.dumps(said(folder, collected(folder)))
    for path in folder.rglob("*"):
        os.utime(path, (1, 1), follow_symlinks=False)
    (folder / "a").unlink()
    put(folder / "a", "a")
    assert json.dumps(said(folder, collected(folder))) == first


class Shrinks(io.BytesIO):
    """A sink behind which the file that is being sent shrinks."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def write(self, data):
        """Take the bytes, and cut the file."""
        os.truncate(self.path, 10)
        return super().write(data)


def test_a_file_that_shrinks_while_it_is_sent_is_named(folder):
    """It is the person's file that changed, not the connection that broke."""
    path = put(folder / "big", "x" * 3_000_000)
    with pytest.raises(UsageError, match="big"):
        send(path, 3_000_000, Shrinks(path))


def test_a_file_that_vanishes_before_it_is_sent_is_named(folder):
    """Both the hashing and the sending say which file it was."""
    with pytest.raises(UsageError, match=r"gone cannot be read"):
        said(folder, CodeTree([WalkedFile("code/gone", str(folder / "gone"))], []))
    with pytest.raises(UsageError, match=r"gone cannot be read"):
        send(folder / "gone", 1, io.BytesIO())


def test_a_home_folder_by_mistake_is_refused_with_what_to_do(folder, monkeypatch):
    """More files than any project has are not hashed and sent, but asked about."""
    monkeypatch.setattr("launcher.upload.folder_walk.MAX_FILES", 3)
    for number in range(4):
        put(folder / str(number))
    with pytest.raises(UsageError, match="is this the project's folder"):
        collected(folder)
