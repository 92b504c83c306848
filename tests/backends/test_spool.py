"""The spool takes what a segment prints, in any pieces, and nothing that it prints writes anywhere else."""

import base64
import hashlib
import json
import os
import re
import shutil
import time
import zlib
from pathlib import Path

import pytest
from testbed.segment import outputs_in, record_of
from testbed.tables import mostly_long
from testbed.toy import recorded_run

from launcher.agent.record.frame import FRAME, Frame, RecordPath, read_frame
from launcher.agent.record.rundir import Run
from launcher.agent.segment.frames import RecordFeed
from launcher.backends.spool import spool as spools
from launcher.backends.spool.spool import Spool

RUN = "261122-x-aaaaaa"


def spooled(folder: Path) -> Run:
    """A run in a spool whose payload had one folder."""
    return recorded_run(folder, RUN, "preparing")


def fed(run: Run, *texts: str, segment: int = 1, **values: object) -> Spool:
    """Take pieces of a log; return the spool, which has kept its progress."""
    with Spool(Path(run.path), segment, **values) as spool:
        for text in texts:
            spool.take(text)
    return spool


def frame(sequence, name, data=b"x", offset=0, number=2):
    path = RecordPath(number, name)
    mode = "+" if path.is_growing else "="
    return Frame(sequence, mode, path, offset, data).line().decode()


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    """What a feed prints of a record that grows as an agent writes it, between lines of other programs; and the record."""
    kernel = recorded_run(tmp_path_factory.mktemp("kernel"), RUN, "preparing")
    lines = [b"launch: segment 1\n"]
    feed = RecordFeed(kernel, 1, lines.append)
    for number in (2, 3):
        folder = kernel.new_folder()
        folder.write_sealed([])
        Path(folder.attempt).write_text(json.dumps({"kind": "attempt", "folder": number}))
        for part in range(2):
            with open(folder.log, "ab") as log, open(folder.events, "ab") as events:
                log.write(b"step %d \xc3\xa9 \xff\n" % part)
                events.write(b'{"kind":"metric","step":%d}\n' % part)
            Path(folder.heartbeat).write_text(json.dumps({"monotonic_s": float(part)}))
            folder.write_state("running", step=part)
            feed.turn()
            lines.append("pip: installed caf\u00e9 \u2713 \U0001f600\n".encode())
        folder.write_state("resuming" if number == 2 else "succeeded", step=2)
        folder.release()
    feed.finish()
    return b"".join(lines).decode(), record_of(kernel)


def assert_whole(run, record):
    assert {path: data for path, data in record_of(run).items() if "/0001/" not in path} == {
        path: data for path, data in record.items() if "/0001/" not in path
    }


def others_in(text):
    """The lines that are no frames."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith(FRAME))


def test_the_log_gives_the_record_and_the_rest_of_the_text(tmp_path, captured):
    """Byte for byte; what is no frame is kept for people."""
    text, record = captured
    run = spooled(tmp_path)
    spool = fed(run, text)
    assert spool.position == 1
    assert_whole(run, record)
    assert (Path(run.path) / "service-1.log").read_text() == others_in(text)


@pytest.mark.slow(reason="a log is cut in many places")
@pytest.mark.parametrize(
    ("dies", "every"),
    [
        pytest.param(False, 61, id="kept"),
        pytest.param(False, 1, id="kept-anywhere", marks=pytest.mark.long),
        pytest.param(True, 1, id="died", marks=pytest.mark.long),
    ],
)
def test_a_cut_anywhere_changes_nothing(tmp_path, captured, dies, every, monkeypatch):
    """Between any two characters; also if a process of ours has gone further, and died before it kept its progress."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)  # no disk dies here
    text, record = captured
    assert 3000 < len(text) < 6000
    empty = spooled(tmp_path / "empty")
    fed(empty)
    for cut in range(0, len(text) + 1, every):
        place = tmp_path / "spool"
        shutil.copytree(empty.path, place / "runs" / RUN)
        run = Run(str(place / "runs" / RUN))
        with Spool(Path(run.path), 1) as kept:
            kept.take(text[:cut])
        if dies:
            died = Spool(Path(run.path), 1)
            died._save_at_s = float("inf")
            died.take(text[cut : cut + 700])
            died._other_text.flush()
        second = Spool(Path(run.path), 1)
        assert second.position == 1
        second._save_at_s = float("inf")
        second.take(text[cut:])
        second._other_text.flush()
        assert_whole(run, record)
        assert (Path(run.path) / "service-1.log").read_text() == others_in(text)
        shutil.rmtree(place)


def test_a_log_in_single_characters_is_the_same(tmp_path, captured):
    """The pieces may be as small as they like."""
    text, record = captured
    run = spooled(tmp_path)
    assert fed(run, *text).position == len(text)
    assert_whole(run, record)


def test_errors_between_the_pieces_of_a_line_do_not_break_it(tmp_path, captured):
    """They come on another stream, whenever they come."""
    text, record = captured
    run = spooled(tmp_path)
    with Spool(Path(run.path), 1) as spool:
        for start in range(0, len(text), 100):
            spool.take(text[start : start + 100])
            spool.take("warning\n" + FRAME, "stderr")
    assert_whole(run, record)


# what is missing or wrong


def test_a_missing_piece_leaves_a_true_beginning(tmp_path, captured):
    """Each frame in turn is lost: what follows of a file that grows is left out."""
    text, record = captured
    lines = text.splitlines(keepends=True)
    for lost, line in enumerate(lines):
        if not line.startswith(FRAME):
            continue
        run = spooled(tmp_path / str(lost))
        fed(run, "".join([*lines[:lost], *lines[lost + 1 :]]))
        for path, data in record_of(run).items():
            if path.endswith((".txt", ".jsonl")):
                assert record[path].startswith(data)


@pytest.mark.parametrize(
    "line",
    [
        FRAME,
        FRAME + "2 + record/0002/log.txt 0 1 x y",
        frame(2, "log.txt").replace(" 0 1 ", " 0 2 ").strip(),
        frame(2, "log.txt").replace(" 0 1 ", " -1 1 ").strip(),
        frame(2, "log.txt").replace(" 0 1 ", " \u0661 1 ").strip(),
        frame(2, "log.txt").replace(" + ", " = ").strip(),
        frame(2, "log.txt").strip()[:-4],
        frame(2, "log.txt").strip() + " more",
        frame(10**9, "log.txt").strip(),
        FRAME + "9" * 5000 + " + record/0002/log.txt 0 1 x y",
        FRAME + "x" * (spools.MAX_CHARS + 1),
    ],
    ids=range(11),
)
def test_a_line_that_is_no_frame_is_harmless(tmp_path, line):
    """Neither an error, nor a change; those that follow count."""
    run = spooled(tmp_path)
    fed(run, frame(1, "log.txt", b"a"), line + "\n", frame(2, "log.txt", b"b", 1))
    assert record_of(run)["record/0002/log.txt"] == b"ab"


def test_few_bytes_that_stand_for_very_many_are_refused(tmp_path):
    """Before they are unpacked."""
    bomb = zlib.compress(b"\0" * (200 << 20))
    head = f"1 + record/0002/log.txt 0 {200 << 20} {'0' * 64}"
    run = spooled(tmp_path)
    began = time.monotonic()
    fed(run, f"{FRAME}{head} {base64.b64encode(bomb).decode()}\n")
    assert time.monotonic() - began < 1
    assert not os.path.exists(run.folder(2).log)


@pytest.mark.parametrize(
    "path",
    [
        "control/plan.json",
        "record/0001/state.json",
        "record/0002/lock",
        "record/0002/../../control/plan.json",
        "record/0002/../../../../x",
        "/record/0002/log.txt",
        "record//0002/log.txt",
        "record/00002/log.txt",
        "record/0000/log.txt",
        "record/\u0660\u0660\u0660\u0662/log.txt",
        "record/0002/log.txt/x",
        "record/0003/log.txt",
        "record/9999/log.txt",
        "record/999999999/log.txt",
        "record/secrets.env",
        "record/0002/node/log.txt",
        "work/code/train.py",
        "work/checkpoints/step-1/x",
        "..",
        "",
    ],
)
def test_a_frame_for_any_other_file_writes_nothing(tmp_path, path):
    """A job can print whatever it likes."""
    run = spooled(tmp_path)
    fed(run)
    before = {str(found.relative_to(tmp_path)): found for found in tmp_path.rglob("*")}
    contents = {name: found.read_bytes() for name, found in before.items() if found.is_file()}
    line = frame(1, "log.txt").replace("record/0002/log.txt", path)
    small = frame(2, "state.json").replace("record/0002/state.json", path)
    fed(run, line, small)
    after = {str(found.relative_to(tmp_path)): found for found in tmp_path.rglob("*")}
    assert {name for name in after if not name.endswith(("feed-1.json", "service-1.log"))} == {
        name for name in before if not name.endswith(("feed-1.json", "service-1.log"))
    }
    for name, data in contents.items():
        if not name.endswith("feed-1.json"):
            assert after[name].read_bytes() == data


@pytest.mark.parametrize("where", ["folder", "file"])
def test_no_link_is_followed(tmp_path, where):
    """Nor written through: a link may have come here by other ways."""
    run = spooled(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "log.txt").write_bytes(b"")
    if where == "folder":
        os.symlink(outside, run.folder(2).path)
    else:
        os.mkdir(run.folder(2).path)
        os.symlink(outside / "log.txt", run.folder(2).log)
    fed(run, frame(1, "log.txt"), frame(2, "state.json"))
    assert (outside / "log.txt").read_bytes() == b""
    assert sorted(os.listdir(outside)) == ["log.txt"]


def test_a_folder_that_a_client_made_meanwhile_stays_its_own(tmp_path):
    """The run was judged here: what the segment sends for a folder of the same number is left out."""
    run = spooled(tmp_path)
    fed(run, frame(1, "log.txt", b"a"))
    folder = run.new_folder(run.folder(2))
    folder.write_state("stopped", "by-user-now")
    folder.release()
    fed(run, frame(2, "state.json", b'{"state":"running"}', number=3), frame(3, "log.txt", b"b", 1))
    assert run.folder(3).read_state()["state"] == "stopped"
    assert record_of(run)["record/0002/log.txt"] == b"ab"
    settled = Spool(Path(run.path), 1).settle([("record/0003/state.json", [b"{}"])])
    assert settled.refused == {"record/0003/state.json": "its folder was made here"}


def test_a_segment_changes_nothing_of_the_one_before_it(tmp_path):
    """Its folders begin behind the last one of its payload."""
    run = spooled(tmp_path)
    fed(run, frame(1, "log.txt", b"a"), frame(2, "state.json", b'{"state":"resuming"}'))
    fed(run, frame(1, "state.json", b"{}"), frame(2, "log.txt", b"b", 1), segment=2)
    assert run.folder(2).read_state()["state"] == "resuming"
    assert record_of(run)["record/0002/log.txt"] == b"a"


def test_of_other_lines_the_newest_are_kept(tmp_path):
    """A program that prints without end fills no disk."""
    run = spooled(tmp_path)
    fed(run, *(f"{number:099}\n" for number in range(60_000)))
    kept = (Path(run.path) / "service-1.log").read_text()
    assert spools.MAX_OTHER_TEXT_BYTES <= len(kept) <= 2 * spools.MAX_OTHER_TEXT_BYTES
    assert kept.endswith(f"{59_999:099}\n")


@pytest.mark.slow(reason="it reads 100 MB")
@mostly_long(
    ("size", "total"), [(4096, 10_000_000), *((size, 100_000_000) for size in (100, 4096, 1 << 20))], ci=(0,)
)
def test_100_mb_take_well_under_a_minute(tmp_path, size, total):
    """In pieces of a line's part, as Kaggle's stand-in cuts, and large ones; and a tenth of them a tenth of that."""
    data = base64.b64encode(os.urandom(24_000))
    lines, offset = [], 0
    while sum(map(len, lines[-1:])) * len(lines) < total:
        lines.append(frame(len(lines) + 1, "log.txt", data, offset))
        offset += len(data)
    text = "".join(lines)
    run = spooled(tmp_path)
    began = time.monotonic()
    with Spool(Path(run.path), 1) as spool:
        for start in range(0, len(text), size):
            spool.take(text[start : start + size])
    assert time.monotonic() - began < 30 * total / 100_000_000
    assert (
        hashlib.sha256(record_of(run)["record/0002/log.txt"]).digest()
        == hashlib.sha256(data * len(lines)).digest()
    )


# the outputs


def test_outputs_win_over_what_was_printed(tmp_path, captured):
    """What was cut is filled, what was forged is replaced, what is the same is not touched; the spool says which."""
    text, record = captured
    kernel = spooled(tmp_path / "kernel")
    fed(kernel, text)
    run = spooled(tmp_path)
    lines = [line for line in text.splitlines(keepends=True) if line.startswith(FRAME)]
    forged = frame(len(lines) + 1, "state.json", b'{"state":"succeeded"}')
    fed(run, *lines[: len(lines) // 2], forged)
    top = Path(kernel.path)
    outputs = [one for one in outputs_in(top) if one[0].startswith("record/0")]
    with Spool(Path(run.path), 1) as spool:
        settled = spool.settle(outputs)
    assert "record/0002/state.json" in settled.replaced
    assert "record/0003/log.txt" in settled.filled
    assert set(settled.refused) == {"record/0001/attempt.json", "record/0001/state.json"} | {
        path for path in settled.refused if path.endswith("lock")
    }
    assert_whole(run, record)


def test_a_state_comes_after_all_else(tmp_path):
    """Whoever sees a run's end finds its artifacts, whatever the order of the outputs."""
    run = spooled(tmp_path)
    seen = []

    def pieces():
        seen.append(Path(run.folder(2).state).exists())
        yield b"weights"

    outputs = [
        ("record/0002/state.json", [b'{"state":"succeeded"}']),
        ("record/0002/log.txt", [b"log"]),
        ("work/artifacts/adapter/weights", pieces()),
    ]
    with Spool(Path(run.path), 1) as spool:
        settled = spool.settle(outputs)
    assert seen == [False]
    assert settled.filled[-1] == "record/0002/state.json"
    assert run.folder(2).read_state()["state"] == "succeeded"


@pytest.mark.parametrize(
    "path",
    [
        "/etc/x",
        "work/../control/plan.json",
        "work/code/../../control/plan.json",
        "work/./x",
        "work//x",
        "work",
        "work/",
        "",
        "control/plan.json",
        "record/0001/state.json",
        "record/0002/lock",
        "record/secrets.env",
        "work/incoming/x",
        "service-1.log",
        "work/code/a\0b",
        "work/code/" + "a" * 300,
        "work/" + "a/" * 70 + "b",
        "work/linked/x",
        "work/code",
        "work/code/train.py/x",
        "work/code/\udc80",
        "work/code/\x1b[2J",
        "work/code/\u202ex",
    ],
)
def test_an_output_at_any_other_path_is_refused(tmp_path, path):
    """With the reason; nothing is written, and the others are taken."""
    run = spooled(tmp_path)
    os.makedirs(run.code)
    Path(run.code, "train.py").write_text("as it was")
    (tmp_path / "outside").mkdir()
    os.symlink(tmp_path / "outside", run.work.below("linked"))
    with Spool(Path(run.path), 1) as spool:
        before = {str(found.relative_to(tmp_path)) for found in tmp_path.rglob("*")}
        settled = spool.settle([(path, [b"forged"]), ("work/home/good", [b"good"])])
    assert list(settled.refused) == [path]
    assert settled.refused[path]
    assert settled.filled == ("work/home/good",)
    after = {str(found.relative_to(tmp_path)) for found in tmp_path.rglob("*")}
    new = {name for name in after - before if not re.search(r"home|service-1\.log|work/a(/a)*$", name)}
    assert not new
    assert Path(run.code, "train.py").read_text() == "as it was"


def test_a_link_in_the_place_of_an_output_is_replaced_and_not_written_through(tmp_path):
    """A large file of the code is a link into the store, which other runs share."""
    run = spooled(tmp_path)
    os.makedirs(run.code)
    shared = tmp_path / "shared"
    shared.write_text("as sent")
    os.symlink(shared, run.code.below("large"))
    with Spool(Path(run.path), 1) as spool:
        assert spool.settle([("work/code/large", [b"changed"])]).replaced == ("work/code/large",)
    assert shared.read_text() == "as sent"
    assert Path(run.code, "large").read_text() == "changed"


def test_what_a_job_may_forge_does_not_fill_this_machines_disk(tmp_path, monkeypatch):
    """A thousand bytes of a frame stand for a megabyte: beyond what an agent prints they are not written, also later."""
    monkeypatch.setattr(spools, "MAX_LIVE_BYTES", 10_000)
    run = spooled(tmp_path)
    lines = [frame(1 + n, "log.txt", b"x" * 4000, offset=4000 * n) for n in range(5)]
    fed(run, *lines[:3])
    spool = fed(run, *lines[3:])
    assert os.path.getsize(run.folder(2).log) == 8000
    assert spool.settle([("record/0002/log.txt", [b"x" * 20_000])]).filled == ("record/0002/log.txt",)


def test_an_output_that_breaks_off_changes_nothing(tmp_path):
    """It is whole or not there; the next time nothing is left of it."""
    run = spooled(tmp_path)

    def broken():
        yield b"half"
        raise OSError("the connection ended")

    with Spool(Path(run.path), 1) as spool, pytest.raises(OSError, match="the connection ended"):
        spool.settle([("work/artifacts/weights", broken())])
    assert not Path(run.artifacts, "weights").exists()
    with Spool(Path(run.path), 1) as spool:
        assert spool.settle([("work/artifacts/weights", [b"whole"])]).filled == ("work/artifacts/weights",)
    assert not [name for name in os.listdir(run.control) if name.startswith(".settle")]


def test_a_frame_reads_as_it_was_written():
    """Any bytes."""
    for data in (b"", b"\0\n \xff" * 1000, os.urandom(1 << 15)):
        made = Frame(7, "+", RecordPath(12, "log.txt"), 5, data)
        assert read_frame(made.line().decode().removesuffix("\n")) == made
