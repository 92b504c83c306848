"""What a run wrote, as its host finds it: nothing is missed, nothing that was sent is taken for new, no link is followed."""

import json
import os
import socket
import time
from pathlib import Path

import pytest
from testbed.ended_run import EndedRun, sha256

from launcher.agent.host import garbage
from launcher.agent.record.files import write_durably
from launcher.agent.store import outputs as module
from launcher.agent.store.last_copies import last_copies
from launcher.agent.store.outputs import OutputDigests, OutputScan, open_output
from launcher.agent.store.path_patterns import PathPatterns


@pytest.fixture
def ended(tmp_path):
    """A run that has ended."""
    return EndedRun(tmp_path)


def found(run, **how):
    """Kinds by path."""
    return {file.path: file.kind for file in OutputScan(run, OutputDigests(run), **how).outputs()}


def test_new_and_changed_files_are_outputs_and_those_that_were_sent_are_not(ended):
    """By their contents: a file that was only touched is as it was."""
    ended.fill(
        {"code/out/model.pt": 1000, "artifacts/adapter": 10, "home/notes": 5, "checkpoints/step-4/w": 9}
    )
    os.utime(ended.work / "code/train.py")
    assert found(ended.run) == {
        "artifacts/adapter": "artifact",
        "checkpoints/step-4/w": "checkpoint",
        "code/out/model.pt": "output",
        "home/notes": "output",
    }
    time.sleep(0.02)  # another tick of the file system's clock than the manifest's
    (ended.work / "code/train.py").write_bytes(b"print('HELLO')\n")
    assert found(ended.run)["code/train.py"] == "output"


def test_what_lies_beside_the_working_folder_is_an_output_and_not_lost(ended):
    """A script that writes ../results/model.pt; what is ours beside it is not listed, nor opened under that name."""
    ended.fill({"results/model.pt": 1000, "notes.txt": 5, "incoming/x": 3, "artifacts/a": 1})
    assert set(found(ended.run)) == {"artifacts/a", "work/notes.txt", "work/results/model.pt"}
    copies = last_copies(ended.run, OutputDigests(ended.run), {}, with_checkpoints=True)
    assert copies.number == 3
    descriptor, status = open_output(ended.run, "work/results/model.pt")
    os.close(descriptor)
    assert status.st_size == 1000
    for path in ("work/artifacts/a", "work/code/train.py", "work/../record/x", "work"):
        with pytest.raises(OSError, match="not a file that a run writes"):
            open_output(ended.run, path)


def test_a_run_with_very_deep_folders_is_removed_whole(ended):
    """Deeper than a path, Python's stack and the open files may be: it must not end each later agent, `gc` and launch."""
    here = os.open(".", os.O_RDONLY)
    (ended.work / "code" / "closed").mkdir(mode=0)
    os.chdir(ended.work / "code")
    try:
        for _ in range(3000):
            os.mkdir("a")
            os.chdir("a")
    finally:
        os.fchdir(here)
        os.close(here)
    ended.fill({"artifacts/a": 1000})
    assert garbage.remove_run(ended.run, None) >= 1000
    assert os.listdir(os.path.dirname(ended.run.path)) == []


def test_what_cannot_be_removed_keeps_nothing_else(tmp_path, monkeypatch):
    """A container's root left files that are not the user's: the rest is removed, then the path is named."""
    for name in "abc":
        (tmp_path / name).mkdir()
    real = os.chmod

    def refuse(path, mode):
        if path == str(tmp_path / "a"):
            raise PermissionError(1, "Operation not permitted", path)
        real(path, mode)

    monkeypatch.setattr(os, "chmod", refuse)
    with pytest.raises(PermissionError, match=f"{tmp_path}/a"):
        garbage.collect(
            str(tmp_path), [{"kind": "removed run", "path": name} for name in "abc"], lambda _count: None
        )
    assert os.listdir(tmp_path) == ["a"]


def test_a_trainers_checkpoints_are_checkpoints_wherever_they_are(ended):
    """Its model in the folder above is an output."""
    ended.fill({"code/out/checkpoint-500/w": 9, "code/out/w": 9, "code/checkpoint-x/w": 9})
    kinds = {
        "code/checkpoint-x/w": "output",
        "code/out/checkpoint-500/w": "checkpoint",
        "code/out/w": "output",
    }
    assert found(ended.run) == kinds


def test_caches_are_no_outputs(ended):
    """By their names, by CACHEDIR.TAG, and virtual environments; among the artifacts everything counts."""
    caches = [".git", "__pycache__", "deep/.cache", ".triton", ".mypy_cache"]
    ended.fill({f"code/{name}/x": 3 for name in caches} | {"artifacts/.cache/x": 3, "home/.nv/x": 3})
    ended.fill({"code/env/pyvenv.cfg": 1, "code/env/lib/x": 3, "code/tagged/x": 3, "code/liar/x": 3})
    ended.write("code/tagged/CACHEDIR.TAG", b"Signature: 8a477f597d28d172789f06886806bc55\n")
    ended.write("code/liar/CACHEDIR.TAG", b"no\n")
    assert set(found(ended.run)) == {"artifacts/.cache/x", "code/liar/CACHEDIR.TAG", "code/liar/x"}


def test_no_link_is_followed_and_only_regular_files_count(ended, tmp_path, monkeypatch):
    """Links to files and folders, pipes and sockets; artifacts/ itself as a link is named, not opened."""
    secret = tmp_path / "secret"
    (secret / "below").mkdir(parents=True)
    (secret / "below" / "key").write_text("key")
    (ended.work / "code" / "link").symlink_to(secret)
    (ended.work / "code" / "file").symlink_to(secret / "below" / "key")
    os.mkfifo(ended.work / "code" / "pipe")
    monkeypatch.chdir(ended.work / "code")  # a socket's path is short
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        (ended.work / "artifacts").symlink_to(secret)
        scan = OutputScan(ended.run, OutputDigests(ended.run))
        assert list(scan.outputs()) == []
        assert set(scan.left_out) == {"artifacts"}


def test_a_work_folder_that_is_a_link_holds_no_outputs(ended, tmp_path):
    """The job put another folder in its place, which has a folder of that name."""
    (tmp_path / "home" / "artifacts").mkdir(parents=True)
    (tmp_path / "home" / "artifacts" / "key").write_text("key")
    ended.work.rename(tmp_path / "away")
    ended.work.symlink_to(tmp_path / "home")
    scan = OutputScan(ended.run, OutputDigests(ended.run))
    assert list(scan.outputs()) == []
    assert "artifacts" in scan.left_out
    with pytest.raises(OSError):
        open_output(ended.run, "artifacts/key")


@pytest.mark.parametrize(
    "path",
    [
        *("code/link/below/key", "code/file", "code/pipe", "artifacts/below/key", "code/../../control/token"),
        *("control/token", "/etc/passwd", "code", "code/", "../x"),
    ],
)
def test_nothing_outside_of_the_work_folder_is_opened(ended, tmp_path, path):
    """Whatever a client names, through whatever link the job has left."""
    secret = tmp_path / "secret"
    (secret / "below").mkdir(parents=True)
    (secret / "below" / "key").write_text("key")
    (ended.work / "code" / "link").symlink_to(secret)
    (ended.work / "code" / "file").symlink_to(secret / "below" / "key")
    (ended.work / "artifacts").symlink_to(secret)
    os.mkfifo(ended.work / "code" / "pipe")
    with pytest.raises(OSError):
        open_output(ended.run, path)


def test_what_cannot_be_listed_is_named(ended, monkeypatch):
    """Names that are not UTF-8, folders too deep, files too many: a removal may not take them for nothing."""
    (Path(os.fsencode(ended.work).decode()) / "code" / os.fsdecode(b"caf\xe9")).write_text("x")
    ended.fill({f"code/{'d/' * 70}x": 1, **{f"home/{number}": 1 for number in range(9)}})
    monkeypatch.setattr(module, "MAX_FILES", 5)
    scan = OutputScan(ended.run, OutputDigests(ended.run))
    assert len(list(scan.outputs())) == 5
    assert sorted(scan.left_out.values()) == [
        *("its name is not UTF-8", "more than 5 files", "more than 64 folders deep"),
    ]


PATTERNS = {
    ("*.pt",): {"a.pt", "out/b.pt", "out/deep/c.pt"},
    ("out/",): {"out/b.pt", "out/log.csv", "out/deep/c.pt"},
    ("/out/*.pt",): {"out/b.pt"},
    ("out/**/c.pt",): {"out/deep/c.pt"},
    ("out/", "!*.csv"): {"out/b.pt", "out/deep/c.pt"},
    ("deep",): {"out/deep/c.pt"},
    ("[!a].pt",): {"out/b.pt", "out/deep/c.pt"},
    ("./a.pt", "?.csv"): {"a.pt"},
    ("a.pt/",): set(),
}


@pytest.mark.parametrize("patterns", PATTERNS, ids=" ".join)
def test_patterns_are_those_of_a_gitignore(patterns):
    """As git reads them."""
    paths = {"a.pt", "out/b.pt", "out/log.csv", "out/deep/c.pt", "train.py"}
    chosen = PathPatterns(patterns)
    assert {path for path in paths if chosen.match(path)} == PATTERNS[patterns]


def test_with_patterns_only_what_matches_is_an_output(tmp_path):
    """Artifacts and checkpoints are what they are; on request all files are listed."""
    ended = EndedRun(tmp_path, outputs=["out/"])
    ended.fill(
        {"code/out/w": 1, "code/tmp/x": 1, "home/x": 1, "artifacts/a": 1, "code/tmp/checkpoint-1/w": 1}
    )
    assert set(found(ended.run)) == {"artifacts/a", "code/out/w", "code/tmp/checkpoint-1/w"}
    assert set(found(ended.run, matches_all=True)) > {"code/tmp/x", "home/x"}


def test_a_second_look_reads_nothing_again_unless_a_file_changed(ended):
    """By the record beside the run; a file that has just been written is too young for it."""
    ended.fill({"artifacts/large": 1 << 20})
    path = ended.work / "artifacts" / "large"
    read = []

    def digest():
        digests = OutputDigests(ended.run, read.append)
        descriptor, _ = open_output(ended.run, "artifacts/large")
        try:
            return digests.of("artifacts/large", descriptor)
        finally:
            os.close(descriptor)
            digests.save()

    digest()
    assert not os.path.exists(ended.run.digests)
    kept = {"artifacts/large": [*module.mark_of(path.stat()), "f" * 64]}
    write_durably(ended.run.digests, json.dumps(kept))
    read.clear()
    assert (digest(), read) == ("f" * 64, [])
    path.write_bytes(b"x" * (1 << 20))
    assert (digest(), sum(read)) == (sha256(b"x" * (1 << 20)), 1 << 20)


def lost(run, held, **how):
    how = {"with_checkpoints": True, **how}
    return {file.path for file in last_copies(run, OutputDigests(run), held, **how).files}


def test_what_the_client_does_not_hold_in_this_version_would_be_lost(ended):
    """By path and digest; checkpoints only if they count."""
    ended.write("artifacts/a", b"a")
    ended.write("code/b", b"b")
    ended.write("checkpoints/step-1/w", b"c")
    held = {"artifacts/a": sha256(b"a"), "code/b": sha256(b"older"), "checkpoints/step-1/w": sha256(b"b")}
    assert lost(ended.run, held) == {"code/b", "checkpoints/step-1/w"}
    assert lost(ended.run, held, with_checkpoints=False) == {"code/b"}


def test_a_file_that_appears_during_a_removal_stops_it(ended):
    """After the comparison, before the folder has its other name: the run is back in its place with the file."""
    copies = last_copies(ended.run, OutputDigests(ended.run), {}, with_checkpoints=True)
    ended.write("artifacts/late", b"late")
    with pytest.raises(garbage.NotRemovableError, match="a file changed while its files were compared"):
        garbage.remove_run(ended.run, lambda _run: copies)
    assert (ended.work / "artifacts" / "late").read_bytes() == b"late"


def test_a_run_that_was_never_recorded_goes_once_it_is_old(tmp_path):
    """Its maker was killed between its first steps: nothing, a folder, or a folder with a lock of a dead writer."""
    from launcher.agent.host import leftovers
    from launcher.agent.record.rundir import Run

    runs = [Run(str(tmp_path / "runs" / f"261122-train-aaaaa{number}")) for number in range(4)]
    os.makedirs(runs[0].path)
    for run in runs[1:]:
        run.make()
    runs[2].new_folder().release()
    held = runs[3].new_folder()
    assert leftovers._files(str(tmp_path), dry_run=False) == []
    for run in runs:
        os.utime(run.path, (1, 1))
    items = leftovers._files(str(tmp_path), dry_run=False)
    assert {item["did"] for item in items} == {"removed"}
    assert os.listdir(tmp_path / "runs") == [runs[3].id]
    held.release()


def test_an_interrupted_removal_is_finished_by_the_next_sweep(ended, tmp_path):
    """But not while somebody removes a run."""
    from launcher.agent.host import leftovers

    away = tmp_path / "runs" / f".removed-{ended.run.id}"
    os.rename(ended.run.path, away)
    with garbage._removal_lock(str(tmp_path), shared=True):
        leftovers._files(str(tmp_path), dry_run=False)
        assert away.exists()
    leftovers._files(str(tmp_path), dry_run=False)
    assert not away.exists()
