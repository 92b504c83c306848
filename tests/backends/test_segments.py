"""What a segment has left comes home whole, or its kernel stays: a service that is asked file by file, and the spool."""

import json
import os
import time

import pytest

from launcher.backends.spool.segment_record import SegmentRecord
from launcher.backends.spool.segments import SegmentOutput, Segments
from launcher.errors import ServiceUnreachableError

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


def segments_of(service, root):
    """The segments of a spool with one run, whose segment is over and whose record has come."""
    segments = Segments(service, root)
    run = segments.run(RUN)
    for path in (run.control, run.folder(1).path, run.folder(2).path, run.code):
        os.makedirs(path)
    with open(os.path.join(run.folder(2).path, "state.json"), "w") as file:
        file.write('{"version": 1, "state": "succeeded", "time": 1}')
    record = SegmentRecord(run=RUN, segment=1, ref=REF, status="over", time=time.time(), pushed=(REF,))
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
