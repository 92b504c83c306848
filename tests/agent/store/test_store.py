"""What clients send, kept once per content: exactly what the manifest says reaches a run, or nothing; a copy of its own."""

import errno
import hashlib
import io
import os
import shutil
import stat
import subprocess
import time
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies

from launcher.agent.host import garbage
from launcher.agent.record import strict_json
from launcher.agent.record.files import sync_tree, write_durably
from launcher.agent.record.locks import Lock
from launcher.agent.record.rundir import Run
from launcher.agent.store import code_sync, inheritance, tree_files
from launcher.agent.store.manifest import ShippingError, check
from launcher.agent.store.shipping import ChunkReader
from launcher.agent.store.store import Store
from launcher.agent.store.tree_files import NamedContents
from launcher.agent.system import process


class FakeWire:
    """The client's side of a wire: its bytes in chunks, then whatever comes behind them."""

    def __init__(self, data, sizes=(1000,), tail=b'{"chunk":0}\n'):
        stream, begin, turn = bytearray(), 0, 0
        while begin < len(data):
            piece = data[begin : begin + sizes[turn % len(sizes)]]
            stream += b'{"chunk":%d}\n%s' % (len(piece), piece)
            begin, turn = begin + len(piece), turn + 1
        self._stream = io.BytesIO(bytes(stream) + tail)

    def read_line(self):
        """Return a line, as the agent's wire does."""
        line = self._stream.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        return line[:-1]

    def read(self, size):
        """Return exactly so many bytes, as the agent's wire does."""
        data = self._stream.read(size)
        if len(data) < size:
            raise EOFError
        return data


@pytest.fixture
def root(tmp_path):
    """A host's root."""
    path = tmp_path / "root"
    path.mkdir()
    return path


@pytest.fixture
def store(root):
    """Its store."""
    return Store(str(root))


@pytest.fixture
def new_run(root):
    """Make folders of runs, as `create` leaves them."""

    def make(letters="aaaa"):
        path = root / "runs" / f"0101-x-{letters}"
        run = Run(str(path))
        run.make()
        write_durably(run.plan, "{}")
        return run

    return make


def sha(data):
    return hashlib.sha256(data).hexdigest()


def file_of(data=b"", *, mode=0o644):
    return {"sha256": sha(data), "size": len(data), "mode": mode}


def mode_of(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


def send(store, run, contents, manifest, sizes=(1000,)):
    """What a client does: offer a tree, send what is missing, and again."""
    by_sha = {sha(data): data for data in contents}
    for _ in range(3):
        missing = store.place(manifest, run)
        if not missing:
            return
        data = b"".join(by_sha[one] for one in missing)
        store.receive(ChunkReader(FakeWire(data, sizes)), [(one, len(by_sha[one])) for one in missing])
    pytest.fail(f"still missing: {missing}")


def everything(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


GOOD = file_of(b"good")
HOSTILE = {
    "a path that leads up": {"../x": GOOD},
    "a path that leads up from within": {"code/../../x": GOOD},
    "an absolute path": {"/x": GOOD},
    "a path beside code and data": {"plan.json": GOOD},
    "code itself": {"code": GOOD},
    "a datum without a name": {"data/model": GOOD},
    "data in the parent's place": {"data/../x": GOOD},
    "an absolute link": {"code/l": {"link": "/etc"}},
    "a link to a path outside the tree": {"code/l": {"link": "../.."}},
    "a link from code to data": {"code/l": {"link": "../data"}},
    "a link from one datum to another": {"data/a/l": {"link": "../b/x"}},
    "a link in the place of code": {"code": {"link": "data"}},
    "an empty link": {"code/l": {"link": ""}},
    "a link that is no text": {"code/l": {"link": 7}},
    "a file through a link": {"code/l": {"link": "."}, "code/l/f": GOOD},
    "a file through a file": {"code/l": GOOD, "code/l/f": GOOD},
    "two names of one file": {"code//good": GOOD},
    "a NUL in a name": {"code/a\0b": GOOD},
    "a hash that leads up": {"code/f": {**GOOD, "sha256": "../../../etc/passwd"}},
    "a hash in capitals": {"code/f": {**GOOD, "sha256": "A" * 64}},
    "a size below nothing": {"code/f": {**GOOD, "size": -1}},
    "a size that is no number": {"code/f": {**GOOD, "size": "4"}},
    "no hash": {"code/f": {"size": 4}},
    "an entry that is no table": {"code/f": "good"},
    "a mode with setuid": {"code/f": {**GOOD, "mode": 0o4755}},
    "a mode below nothing": {"code/f": {**GOOD, "mode": -1}},
    "a mode that is no number": {"code/f": {**GOOD, "mode": "644"}},
    "a mode that is a truth": {"code/f": {**GOOD, "mode": True}},
    "a folder with a sticky bit": {"code/d": {"folder": 0o1777}},
    "a folder without a mode": {"code/d": {"folder": None}},
    "code itself as a folder": {"code": {"folder": 0o755}},
    "a datum's key as a folder": {"data/train": {"folder": 0o755}},
    "a file in an empty folder": {"code/d": {"folder": 0o755}, "code/d/f": GOOD},
    "a file that is a link too": {"code/f": {**GOOD, "link": "good"}},
    "a file that is a folder too": {"code/f": {**GOOD, "folder": 0o755}},
    "a datum without a name, beside another": {"data/a/f": GOOD, "data/model": GOOD},
    "a datum's key, after its file": {"data/a/f": GOOD, "data/a": GOOD},
    "a folder, after its file": {"code/d/f": GOOD, "code/d": GOOD},
    "no name, beside a file": {"code/d/f": GOOD, "code/d/": GOOD},
    "a name that leads up, beside a file": {"code/d/f": GOOD, "code/d/..": GOOD},
    "a name that leads nowhere, beside a file": {"code/d/f": GOOD, "code/d/.": GOOD},
    "a NUL in a name, beside a file": {"code/d/f": GOOD, "code/d/a\0b": GOOD},
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_manifest_that_leads_out_of_its_tree_is_refused(what):
    """Before anything is made of it."""
    with pytest.raises(ShippingError):
        check({"code/good": GOOD, **HOSTILE[what]})


@pytest.mark.parametrize("manifest", [None, [], "code", 7])
def test_what_is_no_manifest_is_refused(manifest):
    """Whatever a client sends."""
    with pytest.raises(ShippingError):
        check(manifest)


names = strategies.text(strategies.sampled_from("a./-\0é"), max_size=12)


@hypothesis.given(
    strategies.dictionaries(
        strategies.one_of(names, names.map("code/{}".format), names.map("data/{}".format)),
        strategies.one_of(names.map(lambda link: {"link": link}), strategies.just(GOOD), strategies.none()),
        max_size=4,
    )
)
def test_what_passes_the_check_stays_below_its_tree(tmp_path_factory, manifest):
    """Any table of paths and links: refused, or nothing is ever made outside of the run and the store."""
    folder = tmp_path_factory.mktemp("any")
    run = Run(str(folder / "root" / "runs" / "0101-x-aaaa"))
    run.make()
    store = Store(str(folder / "root"))
    try:
        check(manifest)
        send(store, run, [b"good"], manifest)
    except ShippingError:
        assert not os.path.exists(run.code)
    outside = [path for path in everything(folder) if not path.startswith("root")]
    assert not outside
    for path in (folder / "root" / "runs").rglob("*"):
        if path.is_symlink():
            assert Path(os.path.realpath(path)).is_relative_to(folder / "root")


def test_a_link_that_leaves_by_way_of_others_is_refused(store, new_run):
    """Each link by itself stays in the tree; all of them together do not."""
    run = new_run()
    manifest = {
        "code/a/b/l": {"link": "../.."},
        "code/k": {"link": "a/b/l/../.."},
    }
    check(manifest)
    with pytest.raises(ShippingError, match="outside the tree"):
        store.place(manifest, run)
    assert everything(Path(run.path)) == ["control", "control/plan.json", "record", "work"]


CONTENTS = {
    "empty": b"",
    "tool": b"#!/bin/sh\n",
    os.fsdecode(b"\xff.bin"): bytes(range(256)),
    "large": os.urandom(2_500_000),
}
TREE = {
    **{
        f"code/deep/{name}": file_of(data, mode=0o755 if name == "tool" else 0o644)
        for name, data in CONTENTS.items()
    },
    "code/up": {"link": "deep/tool"},
    "code/same": file_of(CONTENTS["tool"]),
    "data/model/w": file_of(CONTENTS["large"]),
    "data/train/folder/a": file_of(b"a"),
    "data/train/folder/b": file_of(b"a"),
}
ALL = [*CONTENTS.values(), b"a"]


@pytest.mark.parametrize("sizes", [(7, 100_000, 511), (1 << 20,)], ids=str)
def test_what_is_sent_arrives_as_it_is(store, new_run, sizes):
    """Bytes, modes, links and odd names, in whatever chunks; data stands beside code."""
    run = new_run()
    send(store, run, ALL, TREE, sizes)
    for name, data in CONTENTS.items():
        path = Path(run.code) / "deep" / name
        assert path.read_bytes() == data
        assert mode_of(path) == (0o755 if name == "tool" else 0o644)
    assert os.readlink(f"{run.code}/up") == "deep/tool"
    assert Path(run.data, "model", "w").read_bytes() == CONTENTS["large"]
    assert Path(run.data, "train", "folder", "b").read_bytes() == b"a"


MODES = [0o600, 0o640, 0o400, 0o444, 0o500, 0o751, 0o777, 0o200, 0o000]


def test_modes_are_kept(store, new_run):
    """The code has the modes that were sent, whatever they are, and shared data has them without the right to write."""
    manifest = {f"code/{mode:o}": file_of(b"a", mode=mode) for mode in MODES}
    manifest |= {f"data/train/{mode:o}": file_of(b"a", mode=mode) for mode in MODES}
    check(manifest)
    for run in (new_run("aaaa"), new_run("bbbb")):
        send(store, run, [b"a"], manifest)
        assert store.make_spare(run)  # the second run takes it
        assert {name: mode_of(f"{run.code}/{name}") for name in os.listdir(run.code)} == {
            f"{mode:o}": mode for mode in MODES
        }
        for mode in MODES:
            assert mode_of(os.path.realpath(f"{run.data}/train") + f"/{mode:o}") == mode & 0o555 | 0o400


def test_trees_that_want_other_modes_of_one_content_do_not_change_each_other(store, new_run):
    """A file that is linked into several trees keeps its mode: who wants another has a copy."""
    large = CONTENTS["large"]
    wanted = [("aaaa", 0o644), ("bbbb", 0o755), ("cccc", 0o600), ("dddd", 0o644)]
    runs = {}
    for letters, mode in wanted:
        runs[letters] = new_run(letters)
        send(store, runs[letters], [large], {"data/train/w": file_of(large, mode=mode)})
    for letters, mode in wanted:
        path = Path(runs[letters].data, "train", "w")
        assert stat.S_IMODE(path.stat().st_mode) == mode & 0o555
        assert path.read_bytes() == large


FOLDERS = {
    "code/out": {"folder": 0o755},
    "code/deep/private": {"folder": 0o700},
    "code/deep/shut": {"folder": 0o000},
    "code/link": {"link": "out"},
    "data/train/empty": {"folder": 0o750},
}


def test_empty_folders_arrive(store, new_run):
    """In code and data, with their modes, also where a tree has nothing else; and a spare has them."""
    for run in (new_run("aaaa"), new_run("bbbb")):
        check(FOLDERS)
        send(store, run, [], FOLDERS)
        assert store.make_spare(run)
        modes = {name: mode_of(f"{run.code}/{name}") for name in ("out", "deep/private", "deep/shut")}
        assert modes == {"out": 0o755, "deep/private": 0o700, "deep/shut": 0o000}
        assert os.listdir(f"{run.code}/link") == []
        assert (
            mode_of(os.path.realpath(f"{run.data}/train") + "/empty") == 0o550
        )  # nobody writes into shared data


def test_a_tree_of_a_run_recorded_before_is_placed(store, new_run):
    """Its files say only whether they are programs."""
    run = new_run()
    before = {"sha256": sha(b"good"), "size": 4}
    manifest = {"code/tool": {**before, "exec": True}, "code/text": {**before, "exec": False}}
    check(manifest)
    send(store, run, [b"good"], manifest)
    assert (mode_of(f"{run.code}/tool"), mode_of(f"{run.code}/text")) == (0o755, 0o644)


def test_what_is_here_is_not_sent_again(store, new_run):
    """Neither code nor data, by whichever run it came."""
    send(store, new_run("aaaa"), ALL, TREE)
    assert store.missing(TREE) == []
    send(store, new_run("bbbb"), [], TREE)
    more = {**TREE, "code/new": file_of(b"new")}
    assert store.missing(more) == [sha(b"new")]


def test_a_run_owns_its_copy(store, new_run):
    """What a script does to its own code, by whatever way, reaches no other run."""
    first, second = new_run("aaaa"), new_run("bbbb")
    send(store, first, ALL, TREE)
    tool = Path(first.code, "deep", "tool")
    assert tool.stat().st_nlink == 1
    tool.write_bytes(b"rm -rf /")
    send(store, second, ALL, TREE)
    assert Path(second.code, "deep", "tool").read_bytes() == CONTENTS["tool"]


def test_a_file_that_was_spoilt_in_the_store_is_sent_again(store, new_run):
    """Every byte of the code is proven on its way into a run."""
    send(store, new_run("aaaa"), ALL, TREE)
    path = Path(store.file(sha(CONTENTS["tool"])))
    path.chmod(0o644)
    path.write_bytes(b"#!/bin/XX\n")  # of the same size
    run = new_run("bbbb")
    assert store.place(TREE, run) == [sha(CONTENTS["tool"])] * 2
    assert not os.path.exists(run.code)
    send(store, run, ALL, TREE)
    assert Path(run.code, "deep", "tool").read_bytes() == CONTENTS["tool"]


def test_data_that_was_written_to_is_sent_again(store, new_run):
    """Data is shared between runs; one that changes it spoils it for itself alone."""
    first, second = new_run("aaaa"), new_run("bbbb")
    send(store, first, ALL, TREE)
    weights = Path(first.data, "model", "w")
    weights.chmod(0o644)
    weights.write_bytes(b"other")
    assert store.missing(TREE) == [sha(CONTENTS["large"])]
    send(store, second, ALL, TREE)
    assert Path(second.data, "model", "w").read_bytes() == CONTENTS["large"]


@pytest.mark.parametrize("cut", [0, 5, 1000])
def test_an_upload_that_breaks_leaves_no_half_file_and_what_came_whole_stays(store, new_run, root, cut):
    """The next try sends the rest; a run that was being made has no code."""
    run = new_run()
    missing = store.place(TREE, run)
    data = b"".join(next(one for one in ALL if sha(one) == name) for name in missing)
    sizes = {sha(one): len(one) for one in ALL}
    with pytest.raises((EOFError, ShippingError)):
        store.receive(ChunkReader(FakeWire(data[:cut], tail=b"")), [(one, sizes[one]) for one in missing])
    assert not os.path.exists(run.code)
    assert everything(root / "store" / "incoming") == []
    assert set(store.missing(TREE)) <= set(missing)
    send(store, run, ALL, TREE)


def test_a_file_that_is_another_is_refused(store, root):
    """A file that changed while it was being sent never counts as what it was."""
    with pytest.raises(ShippingError, match="changed"):
        store.receive(ChunkReader(FakeWire(b"b")), [(sha(b"a"), 1)])
    assert not os.path.exists(store.file(sha(b"a")))
    assert everything(root / "store" / "incoming") == []


def test_what_was_touched_after_it_came_is_checked_again(store, new_run, root):
    """A file that came as part of a datum: with its size and its time as before, other bytes are still found."""
    run, data = new_run(), os.urandom(100_000)
    manifest = {"code/train.py": GOOD, "data/d/x": file_of(data)}
    missing = store.place(manifest, run)
    sizes = {sha(b"good"): 4, sha(data): len(data)}
    both = b"".join({sha(b"good"): b"good", sha(data): data}[one] for one in missing)
    store.receive(ChunkReader(FakeWire(both)), [(one, sizes[one]) for one in missing])
    assert store.uploads.has_checked(sha(data))
    path = store.file(sha(data))
    before = os.stat(path)
    os.chmod(path, 0o644)
    with open(path, "r+b") as file:
        file.write(b"other")
    os.chmod(path, stat.S_IMODE(before.st_mode))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert store.place(manifest, run) == [sha(data)]
    send(store, run, [b"good", data], manifest)
    assert Path(run.data, "d", "x").read_bytes() == data


def test_uploads_of_killed_agents_are_swept_and_living_ones_left(store, root):
    """A lock that dies with its holder tells them apart."""
    incoming = root / "store" / "incoming"
    for name in ("dead", "living"):
        (incoming / name).mkdir(parents=True)
        (incoming / name / "file").write_text("half")
        (incoming / f"{name}.lock").touch()
    holder = Lock.take(str(incoming / "living.lock"))
    store.receive(ChunkReader(FakeWire(b"a")), [(sha(b"a"), 1)])
    assert everything(incoming) == ["living", "living.lock", "living/file"]
    holder.release()


def test_what_an_earlier_try_left_is_no_part_of_the_tree(store, new_run):
    """A folder that a killed agent had filled is removed first."""
    run = new_run()
    os.makedirs(f"{run.incoming}/code")
    Path(run.incoming, "code", "old").write_text("old")
    send(store, run, [b"good"], {"code/good": GOOD})
    assert os.listdir(run.code) == ["good"]
    assert not os.path.exists(run.incoming)


def test_a_spare_is_taken_once_and_is_a_copy_of_its_own(store, new_run, root):
    """The next run of the same code takes what was made ahead; the one behind it gets a copy again."""
    first = new_run("aaaa")
    send(store, first, ALL, TREE)
    assert store.make_spare(first)
    spare = next((root / "store" / "spare").glob("*/tree"))
    inode = (spare / "deep" / "tool").stat().st_ino
    second, third = new_run("bbbb"), new_run("cccc")
    send(store, second, [], TREE)
    assert Path(second.code, "deep", "tool").stat().st_ino == inode
    send(store, third, [], TREE)
    assert Path(third.code, "deep", "tool").stat().st_ino != inode
    for run in (first, second, third):
        assert Path(run.code, "deep", "large").read_bytes() == CONTENTS["large"]
        assert Path(run.code, "deep", "tool").stat().st_nlink == 1


def test_a_spare_that_was_written_to_is_no_spare(store, new_run, root):
    """It is checked, each file by size and time, before a run takes it."""
    first = new_run("aaaa")
    send(store, first, ALL, TREE)
    store.make_spare(first)
    (next((root / "store" / "spare").glob("*/tree")) / "deep" / "tool").write_bytes(b"evil")
    second = new_run("bbbb")
    send(store, second, ALL, TREE)
    assert Path(second.code, "deep", "tool").read_bytes() == CONTENTS["tool"]


@pytest.mark.parametrize(
    "stats", ["", "{", '{"deep/tool": [', "[]", "5", '{"deep/tool": 1}', '{"deep/tool": ["x", 1]}']
)
@pytest.mark.parametrize("kind", ["spare", "data"])
def test_a_tree_whose_record_is_torn_is_made_anew(store, new_run, root, kind, stats):
    """A full disk, or a crash, may leave such a record: it vouches for no file."""
    tree = {
        path.replace("code", "data/train") if kind == "data" else path: entry for path, entry in TREE.items()
    }
    first, second = new_run("aaaa"), new_run("bbbb")
    send(store, first, ALL, tree)
    store.make_spare(first)
    made = next(one for one in (root / "store" / kind).glob("*/tree") if (one / "deep").is_dir())
    (made / "deep").chmod(0o700)
    (made / "deep" / "tool").unlink()
    (made / "deep" / "tool").write_bytes(b"evil")
    (made.parent / "stats.json").write_text(stats)
    send(store, second, ALL, tree)
    place = Path(second.code) if kind == "spare" else Path(second.data, "train")
    assert (place / "deep" / "tool").read_bytes() == CONTENTS["tool"]


def test_after_a_refusal_the_rest_of_the_stream_can_be_passed_over(store):
    """The client sends its stream whole; the line behind it is a request again."""
    wire = FakeWire(b"b" * 5000, tail=b'{"chunk":0}\n{"id":7}\n')
    stream = ChunkReader(wire)
    with pytest.raises(ShippingError):
        store.receive(stream, [(sha(b"a"), 1)])
    stream.skip_rest()
    assert wire.read_line() == b'{"id":7}'


# large files of the code

WEIGHTS = os.urandom(300_000)
OTHER_WEIGHTS = os.urandom(250_000)
LARGE_TREE = {
    "code/train.py": file_of(b"train"),
    "code/deep/model.pt": file_of(WEIGHTS, mode=0o600),
    "code/other.bin": file_of(OTHER_WEIGHTS),
    "code/link": {"link": "deep/model.pt"},
}
LARGE_CONTENTS = [b"train", WEIGHTS, OTHER_WEIGHTS]


@pytest.fixture
def small_bound(monkeypatch):
    """A small bound for large files, on a disk that cannot share blocks."""
    monkeypatch.setattr(tree_files, "LARGE", 200_000)
    monkeypatch.setattr(tree_files, "can_clone", lambda _: False)


@pytest.fixture
def new_container_run(new_run, small_bound):
    """Make folders of runs that are to be containers."""

    def make(letters="aaaa", **plan):
        run = new_run(letters)
        write_durably(run.plan, strict_json.encode(plan))
        folder = run.new_folder()
        write_durably(folder.attempt, strict_json.encode({"kind": "prepare", "runtime": {"kind": "docker"}}))
        folder.release()
        return run

    return make


def used(folder):
    """Bytes on the disk, by du, which counts a file with several names once."""
    return int(
        subprocess.run(
            ["du", "-s", "-B1", folder], capture_output=True, text=True, check=True
        ).stdout.split()[0]
    )


def test_many_runs_share_one_copy_where_they_cannot_write_to_it(store, root, new_container_run):
    """A second and a third run cost next to nothing; each reads the whole content, also through links to it."""
    send(store, new_container_run("aaaa"), LARGE_CONTENTS, LARGE_TREE)
    before = used(root)
    for letters in ("bbbb", "cccc"):
        run = new_container_run(letters)
        send(store, run, [], LARGE_TREE)
        assert (
            Path(run.code, "deep", "model.pt").read_bytes() == Path(run.code, "link").read_bytes() == WEIGHTS
        )
        assert Path(run.code, "other.bin").read_bytes() == OTHER_WEIGHTS
    shared = Path(run.code, "deep", "model.pt").resolve()
    assert shared.is_relative_to(
        root / "store" / "data"
    )  # which a container sees at this path, and cannot write to
    assert (mode_of(shared), mode_of(shared.parent) & 0o722) == (0o400, 0o500)
    assert used(root) - before < 200_000


@pytest.mark.parametrize("pattern", ["deep/model.pt", "*.pt", "deep/", "deep", "de*/model.p?"])
def test_what_the_job_changes_in_place_is_a_copy_of_its_own(store, new_container_run, pattern):
    """The plan's `writable` names it; others are shared all the same."""
    run = new_container_run(writable=[pattern])
    send(store, run, LARGE_CONTENTS, LARGE_TREE)
    model = Path(run.code, "deep", "model.pt")
    assert (model.is_symlink(), mode_of(model), model.stat().st_nlink) == (False, 0o600, 1)
    assert Path(run.code, "other.bin").is_symlink()
    assert model.read_bytes() == WEIGHTS


@pytest.mark.skipif(os.geteuid() != 0, reason="root can write to everything")
def test_a_native_run_of_root_has_its_own_copies(store, new_run, small_bound):
    """No mode keeps root from writing to the store."""
    run = new_run()
    send(store, run, LARGE_CONTENTS, LARGE_TREE)
    assert not Path(run.code, "other.bin").is_symlink()
    assert Path(run.code, "other.bin").stat().st_nlink == 1


def test_a_shared_file_that_was_changed_is_never_handed_on(store, new_container_run):
    """A job that opens it by force spoils it for the runs that have it; the next run gets what was sent."""
    first, second = new_container_run("aaaa"), new_container_run("bbbb")
    send(store, first, LARGE_CONTENTS, LARGE_TREE)
    for name in ("deep/model.pt", "other.bin"):
        shared = Path(first.code, name).resolve()
        shared.chmod(0o600)
        with shared.open("r+b") as file:
            file.write(b"changed")
    assert store.place(LARGE_TREE, second) == [sha(OTHER_WEIGHTS)]  # the store has the other one in two modes
    assert not os.path.exists(second.code)
    send(store, second, LARGE_CONTENTS, LARGE_TREE)
    assert Path(second.code, "deep", "model.pt").read_bytes() == WEIGHTS
    assert Path(second.code, "other.bin").read_bytes() == OTHER_WEIGHTS


def test_a_spare_is_for_runs_with_links_and_with_copies(store, new_container_run):
    """It leaves large files out, and whoever takes it gets them as its plan says."""
    first = new_container_run("aaaa")
    send(store, first, LARGE_CONTENTS, LARGE_TREE)
    for letters, writable in (("bbbb", []), ("cccc", ["*.pt"])):
        assert store.make_spare(first)
        run = new_container_run(letters, writable=writable)
        assert store.place(LARGE_TREE, run) == []
        assert Path(run.code, "deep", "model.pt").is_symlink() == (not writable)
        assert Path(run.code, "deep", "model.pt").read_bytes() == WEIGHTS
        assert Path(run.code, "train.py").read_bytes() == b"train"


def test_gc_keeps_what_a_run_links_to_until_the_run_is_gone(store, root, new_container_run):
    """Its manifest names it; with the last run the store's copy goes, although nobody may write to its folder."""
    first, second = new_container_run("aaaa"), new_container_run("bbbb")
    send(store, first, LARGE_CONTENTS, LARGE_TREE)
    send(store, second, [], LARGE_TREE)
    named = NamedContents()
    named.read(first.manifest)
    assert list(store.unnamed(named)) == []
    garbage.remove(first.path)
    assert Path(second.code, "deep", "model.pt").read_bytes() == WEIGHTS
    for _, path in list(store.unnamed(NamedContents())):
        garbage.remove(path)
    assert [path for path in (root / "store").rglob("*") if path.is_file()] == []


def test_a_run_that_continues_another_gets_the_file_again(store, new_container_run, monkeypatch):
    """From the store or, where that has lost it, by way of the parent's link."""
    parent, child = new_container_run("aaaa"), new_container_run("bbbb")
    send(store, parent, LARGE_CONTENTS, LARGE_TREE)
    os.unlink(store.file(sha(WEIGHTS)))
    inheritance._place(parent, child, store)
    assert Path(child.code, "deep", "model.pt").read_bytes() == WEIGHTS


def test_where_the_disk_shares_blocks_each_run_has_its_own_copy(store, new_container_run, monkeypatch):
    """Such a copy takes no space and can be written to."""
    monkeypatch.setattr(tree_files, "can_clone", lambda _: True)
    run = new_container_run()
    send(store, run, LARGE_CONTENTS, LARGE_TREE)
    assert not Path(run.code, "other.bin").is_symlink()


# after a power cut

SENT = {
    "code/train.py": file_of(b"train"),
    "code/lib/run.sh": file_of(b"run", mode=0o755),
    "code/lib/latest": {"link": "run.sh"},
    "code/out": {"folder": 0o755},
    "data/train/part": file_of(b"data"),
}


@pytest.fixture
def cut_off(store, new_run):
    """A run that was made in another boot, and of whose files nobody knows if the disk had them."""
    run = new_run()
    write_durably(run.prepared_record, strict_json.encode({"boot_id": "of another boot"}))
    send(store, run, [b"train", b"run", b"data"], SENT)
    assert code_sync.is_doubtful(run)
    return run


def hurt(path, data):
    """Give a file other contents."""
    with open(path, "wb") as file:
        file.write(data)


def mended(run):
    """Mend a run whose files are older than its manifest, as a power cut leaves them."""
    os.utime(run.manifest, (time.time() + 60,) * 2)
    return code_sync.mend(run, lambda: False)


def test_what_the_disk_lost_of_a_run_is_made_anew(store, cut_off):
    """Empty, torn and missing files, modes and links; what the job has added stays."""
    code = Path(cut_off.code)
    hurt(code / "train.py", b"")
    os.chmod(code / "lib" / "run.sh", 0o600)
    (code / "lib" / "latest").unlink()
    (code / "out").rmdir()
    (Path(cut_off.data) / "train").unlink()
    (code / "added").write_text("by the job")
    assert mended(cut_off) == (["lib/latest", "lib/run.sh", "out", "train.py"], [])
    assert (code / "train.py").read_bytes() == b"train"
    assert (mode_of(code / "lib" / "run.sh"), (code / "lib" / "latest").read_bytes()) == (0o755, b"run")
    assert (Path(cut_off.data) / "train" / "part").read_bytes() == b"data"
    assert (code / "out").is_dir()
    assert (code / "added").read_text() == "by the job"
    assert not code_sync.is_doubtful(cut_off)
    assert not os.path.exists(cut_off.incoming)


def test_a_file_of_the_same_size_that_the_disk_has_torn_is_made_anew(cut_off):
    """XFS and ext4 may leave zeros."""
    hurt(Path(cut_off.code) / "train.py", bytes(5))
    assert mended(cut_off) == (["train.py"], [])


def test_what_the_job_has_written_anew_is_its_own(cut_off):
    """A log or a table that was sent, and goes on growing."""
    code = Path(cut_off.code)
    (code / "new").write_text("by the job")
    os.utime(code / "new", (1, 1))
    os.replace(code / "new", code / "train.py")  # with an old time, as `cp -p` and tar leave it
    shutil.rmtree(code / "lib")
    (code / "lib").write_text("by the job")
    assert code_sync.mend(cut_off, lambda: False)[1] == []
    assert (code / "train.py").read_text() == (code / "lib").read_text() == "by the job"


def test_a_link_that_the_job_put_in_the_place_of_a_folder_is_not_followed(cut_off, tmp_path):
    """What it leads to is the user's."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "run.sh").write_text("the user's")
    shutil.rmtree(Path(cut_off.code) / "lib")
    (Path(cut_off.code) / "lib").symlink_to(outside)
    assert mended(cut_off) == ([], [])
    assert (outside / "run.sh").read_text() == "the user's"


def test_a_link_in_the_place_of_the_code_is_not_followed(cut_off, tmp_path):
    """A job may have moved all of it."""
    outside = tmp_path / "outside"
    os.rename(cut_off.code, outside)
    os.symlink(outside, cut_off.code)
    hurt(outside / "train.py", b"the user's")
    assert mended(cut_off) == ([], [])
    assert (outside / "train.py").read_bytes() == b"the user's"


def test_what_the_store_lost_too_is_named_and_nothing_is_touched(store, cut_off):
    """The run stays doubtful: it must not train."""
    code = Path(cut_off.code)
    hurt(code / "train.py", b"")
    hurt(code / "lib" / "run.sh", b"")
    os.chmod(store.file(sha(b"train")), 0o644)
    hurt(store.file(sha(b"train")), bytes(5))
    found = mended(cut_off)
    assert found == ([], ["code/train.py"])
    assert (code / "lib" / "run.sh").read_bytes() == b""
    assert code_sync.is_doubtful(cut_off)
    assert code_sync.words_of(cut_off, found)["line"] == "code/train.py"


def test_a_comparison_that_is_cut_short_shows_nothing(cut_off):
    """The next agent begins it again."""
    assert code_sync.mend(cut_off, lambda: True) is None
    assert code_sync.is_doubtful(cut_off)


def test_a_settled_run_is_not_compared(cut_off, new_run):
    """Nor one of this boot."""
    run = new_run("bbbb")
    write_durably(run.prepared_record, strict_json.encode({"boot_id": process.boot_id()}))
    assert not code_sync.is_doubtful(run)
    assert not os.path.exists(run.settled)
    code_sync.settle(run)
    write_durably(run.prepared_record, strict_json.encode({"boot_id": "of another boot"}))
    assert not code_sync.is_doubtful(run)
    code_sync.settle(cut_off)
    assert code_sync.is_doubtful(cut_off), "the disk is synced too late"


def test_outputs_are_synced_however_deep_and_whatever_lies_between(tmp_path):
    """A pipe would block, a file without permissions cannot be opened, and a link leads elsewhere: all are passed over."""
    descriptor = os.open(tmp_path, os.O_RDONLY)
    try:
        for _ in range(1200):  # deeper than Python's stack
            os.mkdir("d", dir_fd=descriptor)
            below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = below
    finally:
        os.close(descriptor)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "closed").touch(mode=0)
    (tmp_path / "link").symlink_to("/nowhere")
    sync_tree(str(tmp_path))
    subprocess.run(["rm", "-rf", tmp_path / "d"], check=True)


def test_a_disk_that_fails_is_told(tmp_path, monkeypatch):
    """By the error of the file that it has lost."""
    (tmp_path / "model").write_text("weights")

    def fails(_descriptor):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="Input/output"):
        sync_tree(str(tmp_path))
