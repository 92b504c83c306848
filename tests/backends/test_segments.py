"""What a segment has left comes home whole, or its kernel stays: a service that is asked file by file, and the spool."""

import json
import os
import time
from types import SimpleNamespace

import pytest

from launcher.backends.spool import segments as module
from launcher.backends.spool.segment_record import SegmentRecord
from launcher.backends.spool.segments import Packed, SegmentLook, SegmentOutput, Segments
from launcher.errors import ServiceUnreachableError, UnknownOutcomeError

RUN, REF = "261125-toy-aaaa11", "alice/launch-261125-toy-aaaa11-1"


class Service:
    """A service with the outputs of one segment, and the files that it has sent. It breaks off after `most` of them."""

    name = "toy"

    def __init__(self, *paths):
        self.paths = paths
        self.most = len(paths)
        self.sent = []
        self.deleted = []

    def outputs(self, ref, run):
        """List them."""
        yield from (SegmentOutput(path, self._pieces(path)) for path in self.paths)

    def _pieces(self, path):
        if len(self.sent) == self.most:
            raise ServiceUnreachableError("toy", "broken-off", "toy: it hung up")
        self.sent.append(path)
        yield path.encode()

    def delete(self, ref):
        """Note it."""
        self.deleted.append(ref)
        return True


def segments_of(service, root, **values):
    """The segments of a spool with one run, whose segment is over and whose record has come."""
    segments = Segments(service, root)
    run = segments.run(RUN)
    for path in (run.control, run.folder(1).path, run.folder(2).path, run.code):
        os.makedirs(path)
    with open(os.path.join(run.folder(2).path, "state.json"), "w") as file:
        file.write('{"version": 1, "state": "succeeded", "time": 1}')
    values = {"status": "over", "time": time.time(), **values}
    record = SegmentRecord(run=RUN, segment=1, ref=REF, pushed=(REF,), **values)
    with open(os.path.join(run.control, "service.json"), "w") as file:
        file.write(record.model_dump_json())
    return segments


def test_a_name_of_several_lines_stands_for_no_other_file(tmp_path):
    """It stays where it is, and the file whose name it has in it comes."""
    odd, plain = "work/artifacts/x\nwork/artifacts/z", "work/artifacts/z"
    service = Service(odd, plain)
    segments = segments_of(service, tmp_path)
    segments.advance(RUN, lambda _count: None)
    assert service.sent == [plain]
    assert (tmp_path / "runs" / RUN / plain).read_text() == plain


def test_a_segment_stays_whose_outputs_cannot_all_be_here(tmp_path):
    """Here is a file where its job has made a folder: that output is only there."""
    service = Service("work/artifacts/model", "work/code/train.py/x")
    segments = segments_of(service, tmp_path)
    (tmp_path / "runs" / RUN / "work" / "code" / "train.py").touch()
    record = segments.advance(RUN, lambda _count: None)
    assert record.status == "home"
    assert list(record.refused) == ["work/code/train.py/x"]
    assert service.deleted == []
    assert [kept.ref for kept in segments.kept()] == [REF]


MODEL, LOG = "work/artifacts/model", "record/0002/log.txt"


@pytest.mark.parametrize("listed", [(), (LOG,)], ids=["nothing", "less"])
def test_a_second_list_that_is_shorter_than_the_first_deletes_no_kernel(tmp_path, listed):
    """The files come with a later one, also in another process."""
    service = Service(LOG, MODEL)
    segments_of(service, tmp_path, status="ended").advance(RUN)
    service.paths = listed
    segments = Segments(service, tmp_path)
    for _ in range(2):
        with pytest.raises(ServiceUnreachableError, match="not available"):
            segments.advance(RUN, lambda _count: None)
    assert (segments.record(RUN).status, service.deleted) == ("over", [])
    service.paths, service.most = (LOG, MODEL), 9
    assert segments.advance(RUN, lambda _count: None).status == "home"
    assert (tmp_path / "runs" / RUN / MODEL).read_text() == MODEL
    assert service.deleted == [REF]


def test_a_session_that_ran_to_its_end_has_left_something(tmp_path):
    """An empty list is not believed at once; nor for ever, because a script may fail before it writes."""
    service = Service()
    segments = segments_of(service, tmp_path, status="ended", is_complete=True)
    with pytest.raises(ServiceUnreachableError, match="not available"):
        segments.advance(RUN, lambda _count: None)
    assert (segments.record(RUN).status, service.deleted) == ("ended", [])
    old = segments.record(RUN).model_copy(update={"time": time.time() - module.OUTPUTS_S})
    segments._write(RUN, old)
    assert segments.advance(RUN, lambda _count: None).status == "home"


def test_a_session_that_failed_may_leave_nothing(tmp_path):
    service = Service()
    segments = segments_of(service, tmp_path, status="ended")
    assert segments.advance(RUN, lambda _count: None).status == "home"
    assert service.deleted == [REF]


@pytest.mark.parametrize(
    ("status", "flags", "read"),
    [
        ("running", (False, False, False, False), ("running", None)),
        ("over", (False, False, False, True), ("over", "earlier")),
        ("over", (True, False, True, True), ("home", "latest")),
        ("over", (True, True, False, False), ("gone", None)),
        ("deleted", (True, True, True, True), ("deleted", "latest")),
    ],
)
def test_a_record_with_the_flags_of_an_older_version_is_read(status, flags, read):
    """As commit f148254 wrote it."""
    words = {
        **dict(zip(("is_home", "are_gone", "is_adopted", "is_shared"), flags, strict=True)),
        "earlier": [REF],
    }
    told = {
        "version": 1,
        "run": RUN,
        "segment": 2,
        "ref": REF,
        "status": status,
        "time": 1.0,
        "pushed": [REF],
        **words,
    }
    record = SegmentRecord.model_validate_json(json.dumps(told))
    assert (record.status, record.other_client, record.pushed) == (*read, (REF,))


class _LateService(Service):
    """A service that shows what it has accepted only after a while, by a clock of the test."""

    def __init__(self, late_s):
        super().__init__()
        self.time_s = 1_000_000.0
        self.late_s = late_s
        self.accepted = {}  # by name, when
        self.is_answering = self.is_accepting = True

    def reference(self, run, segment):
        return f"alice/launch-{run}-{segment}"

    def pack(self, run, record):
        return Packed("", "None", 3600.0)

    def push(self, record, packed):
        if self.is_accepting:
            self.accepted[record.ref] = self.time_s
        if not self.is_answering:
            raise UnknownOutcomeError("toy", "silent", "toy: no answer; it may have been accepted")

    def is_full(self, error):
        return False

    def exists(self, ref):
        return ref in self.accepted and self.time_s - self.accepted[ref] >= self.late_s

    def names(self, words):
        return {ref: None for ref in self.accepted if self.exists(ref)}

    def look(self, ref):
        return SegmentLook("running") if self.exists(ref) else SegmentLook("deleted", "its kernel is gone")

    def now(self):
        return self.time_s

    def unpack(self, ref, folder):
        return None

    def delete(self, ref):
        is_there = self.exists(ref)
        if is_there:
            del self.accepted[ref]
            self.deleted.append(ref)
        return is_there


@pytest.fixture
def late(tmp_path, monkeypatch):
    """Segments of a service that shows a push after nine minutes, whose run was just prepared."""
    service = _LateService(540.0)

    def sleep(seconds):
        service.time_s += seconds

    clock = lambda: service.time_s  # noqa: E731
    monkeypatch.setattr(module, "time", SimpleNamespace(time=clock, monotonic=clock, sleep=sleep))
    segments = Segments(service, tmp_path)
    run = segments.run(RUN)
    for path in (run.control, run.folder(1).path, run.code):
        os.makedirs(path)
    return segments


def looked(segments, seconds):
    """Let time pass with a look every minute; return the statuses that were on record."""
    seen = []
    for _ in range(int(seconds // 60)):
        segments.service.time_s += 60
        seen.append(segments.look(RUN).status)
    return seen


@pytest.mark.parametrize("is_answering", [True, False])
def test_what_shows_after_nine_minutes_is_followed_and_nothing_is_pushed_beside_it(late, is_answering):
    late.service.is_answering = is_answering
    late.push(RUN)
    statuses = looked(late, 900)
    assert set(statuses[:8]) == {"sent" if is_answering else "unsettled"}
    assert statuses[-1] == "running"
    assert list(late.service.accepted) == [REF]
    assert late.service.deleted == []


@pytest.mark.parametrize("is_answering", [True, False])
def test_what_shows_after_ten_minutes_was_pushed_again_and_is_deleted(late, is_answering):
    """Its name stays on record as long as it may appear."""
    late.service.is_answering, late.service.late_s = is_answering, 700.0
    late.push(RUN)
    assert looked(late, 660)[-1] == "waiting"
    late.service.late_s, late.service.is_answering = 100_000.0, True
    again = late.push(RUN)
    assert (again.segment, again.lost) == (2, (REF,))
    late.service.late_s = 60.0
    assert looked(late, 120)[-1] == "running"
    assert late.service.deleted == [REF]
    assert list(late.service.accepted) == [again.ref]


def test_a_stop_before_a_push_shows_is_made_good_by_the_next_list(late):
    late.push(RUN)
    late.end(RUN)
    record = late.record(RUN)
    assert (record.status, record.lost) == ("gone", (REF,))
    assert "does not show its session yet" in record.words
    late.adopt()
    assert list(late.service.accepted) == [REF]
    late.service.time_s += 540
    late.adopt()
    assert late.service.accepted == {}
    late.retire(RUN)  # a second stop finds nothing, and that is no reason to wait
    assert late.kept() == []


def test_a_kernel_that_showed_and_does_not_is_gone_only_after_ten_minutes(late):
    late.service.late_s = 0.0
    late.push(RUN)
    assert looked(late, 60) == ["running"]
    late.service.late_s = 100_000.0
    assert set(looked(late, 480)) == {"running"}
    assert late.record(RUN).words == "toy does not show it yet"
    assert looked(late, 120)[-1] == "deleted"
    assert [left.ref for left in late.kept()] == [REF]  # gc looks once more
