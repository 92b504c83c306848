"""What another client has pushed is taken from its script, which may be anything that stands in a kernel of that name."""

import io
import json
import lzma
import tarfile

import pytest
from testbed.kaggle_state import Kernel

from launcher.backends.kaggle.kaggle_script import MAX_UNPACKED_BYTES, script
from launcher.backends.spool.segments import Segments

RUN = "261125-sft-aaaa11"
SETTINGS = {
    "version": 1,
    "run": RUN,
    "segment": 1,
    "session_s": 60.0,
    "place_id": "kaggle-alice",
    "internet": True,
}


def packed(*members, **changed):
    """The text of a script whose payload has these members beside its settings and a run's first folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        told = json.dumps({**SETTINGS, **changed}).encode()
        for name, data in (("segment.json", told), ("run/record/0001/attempt.json", b"{}")):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
        for entry in members:
            archive.addfile(entry)
    return script(lzma.compress(buffer.getvalue()))


def link(name, target):
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname = tarfile.SYMTYPE, target
    return entry


def adopted(stand_in, account, text, slug=f"launch-{RUN}-1"):
    """What the account takes into its spool if a kernel has this text."""
    ref = f"alice/{slug}"
    stand_in.fail("ListKernels", "answer", values={"kernels": [{"ref": ref}]})
    stand_in.fail("GetKernel", "answer", values={"metadata": {"title": slug}, "blob": {"source": text}})
    found = Segments(account, account.spool).adopt()
    assert not list(account.spool.glob(".adopted-*"))
    return found


def test_a_run_is_taken_from_the_script_of_its_segment(stand_in, account):
    assert adopted(stand_in, account, packed()) == [RUN]
    assert (account.spool / "runs" / RUN / "record" / "0001" / "attempt.json").is_file()


@pytest.mark.parametrize(
    ("slug", "changed"),
    [
        (f"launch-{RUN}-2", {}),
        ("launch-261125-sft-bbbb22-1", {}),
        ("launch-escaped-1", {"run": "../../../escaped"}),
        ("launch-etc-1", {"run": "/etc"}),
    ],
)
def test_a_script_that_names_another_run_than_its_kernel_is_none_of_ours(stand_in, account, slug, changed):
    """A person may copy a kernel on the web; and an id is a folder's name here."""
    top = account.spool.parents[2]
    before = {*top.rglob("*")}
    assert adopted(stand_in, account, packed(**changed), slug) == []
    assert {*top.rglob("*")} - before == {account.spool / "runs"}


@pytest.mark.parametrize("target", ["/etc", "../../../..", "../../outside"])
def test_a_link_that_leads_out_of_a_run_ends_the_adoption(stand_in, account, target):
    assert adopted(stand_in, account, packed(link("run/work/x", target))) == []


def test_a_payload_that_stands_for_very_many_bytes_is_not_unpacked(stand_in, account):
    bomb = script(lzma.compress(b"\0" * (MAX_UNPACKED_BYTES + 1)))
    assert adopted(stand_in, account, bomb) == []


@pytest.mark.parametrize("run", [RUN, "261125-" + "a" * 26 + "-bbbb22"])
def test_the_kernels_of_a_run_are_found_by_its_id_or_a_part_of_it(stand_in, account, run):
    """The name in the longest id is cut, to leave room for the segment's number."""
    ref = account.reference(run, 999)
    slug = ref.partition("/")[2]
    assert len(slug) <= 50
    stand_in.state.kernels[ref] = Kernel(1, "alice", slug, slug)
    assert account.names(run) == account.names(run[-6:]) == account.names("") == {ref: None}
