"""Our client of Kaggle's service, against the stand-in: each fault is a named reason, and a push is never made twice."""

import contextlib
import itertools
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pydantic import ValidationError
from testbed.client import until
from testbed.kaggle_session import is_container

from launcher.backends.kaggle.kaggle import Account
from launcher.backends.kaggle.kaggle_host import KaggleSettings
from launcher.backends.kaggle.kaggle_kernel import KaggleReason as Reason
from launcher.backends.kaggle.kaggle_kernel import KernelRef, NewKernel
from launcher.backends.kaggle.kaggle_service import log_in
from launcher.errors import (
    AuthRefusedError,
    HostError,
    ServiceError,
    ServiceUnreachableError,
    UnknownOutcomeError,
    UnreachableError,
    UsageError,
)
from launcher.transport.http import service_wire

KEY = {"KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "key-of-alice"}
WRITES = "open('result.txt', 'w').write('done')\n"
WAITS = "import time\ntime.sleep(60)\n"


@pytest.fixture
def fresh():
    """A new slug at each call."""
    numbers = itertools.count(1)
    return lambda: KernelRef("alice", f"launch-toy-{next(numbers)}")


def kernel(ref, source=WRITES, machine="None", **values):
    return NewKernel(ref=ref, source=source, machine=machine, timeout_s=60, **values)


def contents(kaggle, ref):
    return {file.file_name: b"".join(kaggle.download(file)) for file in kaggle.outputs(ref)}


def test_a_kernel_runs_and_the_next_one_finds_what_it_left(kaggle, stand_in, fresh):
    """Push, status, outputs; then a second one whose source is the first; then both are deleted."""
    first, second = fresh(), fresh()
    many = "import os\nfor n in range(205):\n    os.makedirs('a/b', exist_ok=True)\n    open(f'a/b/{n}', 'w').write(str(n))\n"
    assert kaggle.push(kernel(first, many)).landed == first
    stand_in.wait_for(str(first), "COMPLETE")
    assert kaggle.status(first).status == "COMPLETE"
    assert contents(kaggle, first) == {f"a/b/{n}": str(n).encode() for n in range(205)}

    reads = "import os, pathlib\nroot = os.environ.get('LAUNCH_KAGGLE_INPUT', '/kaggle/input')\n"
    reads += "found = list(pathlib.Path(root).rglob('b/7'))\nopen('seen', 'w').write(found[0].read_text())\n"
    kaggle.push(kernel(second, reads, kernels=(str(first),)))
    stand_in.wait_for(str(second), "COMPLETE")
    assert contents(kaggle, second) == {"seen": b"7"}
    kaggle.delete(first)
    kaggle.delete(second)
    assert kaggle.find(first) is None
    assert [line["push"] for line in stand_in.calls("SaveKernel")] == [
        "alice/launch-toy-1/1",
        "alice/launch-toy-2/1",
    ]


def test_a_session_ends_at_its_own_limit_with_all_that_it_started(kaggle, stand_in, fresh):
    """Status ERROR with the service's words; a child that left the process group is ended too."""
    ref = fresh()
    leave = "'setsid', " if is_container() else ""  # without root only the process group is the session's
    script = f"import subprocess, time\nsubprocess.Popen([{leave}'sleep', '98765'])\ntime.sleep(60)\n"
    kaggle.push(kernel(ref, script).model_copy(update={"timeout_s": 1}))
    stand_in.wait_for(str(ref), "ERROR", timeout_s=10)
    assert "limit" in kaggle.status(ref).failure_message
    words = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # a process that has ended by now
            words.append(path.read_bytes())
    assert not [line for line in words if b"98765" in line and line.startswith(b"sleep")]


@pytest.mark.parametrize("missing", [403, 404])
@pytest.mark.parametrize(
    ("fault", "is_there"),
    [
        ({"kind": "lost"}, True),
        ({"kind": "accepted", "status": 502}, True),
        ({"kind": "accepted", "status": 408}, True),
        ({"kind": "accepted", "status": 303, "headers": {"Location": "https://192.0.2.1/"}}, True),
        ({"kind": "accepted", "status": 500, "message": "oops"}, True),
        ({"kind": "accepted", "status": 200, "values": {"code": 503, "message": "backend died"}}, True),
        ({"kind": "accepted", "status": 400, "values": {"code": 408}}, True),
        ({"kind": "accepted", "status": 200, "values": {"error": {"code": 500}}}, True),
        ({"kind": "cut"}, False),
        ({"kind": "status", "status": 503}, False),
        ({"kind": "broken"}, False),
        ({"kind": "answer", "values": {}}, False),
        ({"kind": "answer", "values": {"ref": ["no", "string"]}}, False),
    ],
    ids=str,
)
def test_a_push_without_a_clear_answer_is_settled_by_asking(
    stand_in, kaggle, fresh, fault, is_there, missing
):
    """It raises UnknownOutcomeError; `find` tells which it was; and the ledger has one push of it, or none."""
    stand_in.habits.missing_status = missing
    ref = fresh()
    stand_in.fail("SaveKernel", **fault)
    with pytest.raises(UnknownOutcomeError, match="may have been accepted"):
        kaggle.push(kernel(ref))
    found = kaggle.find(ref)
    assert (found is not None) == is_there
    if found is not None:
        assert found.blob.source == WRITES
        assert found.metadata.title == ref.slug
    assert len(stand_in.calls("SaveKernel")) == 1
    assert stand_in.state.pushes == ([f"{ref}/1"] if is_there else [])


def test_a_push_may_arrive_after_its_connection_has_broken(stand_in, kaggle, fresh):
    """So one look that finds nothing settles nothing: the caller asks for a while."""
    ref = fresh()
    stand_in.fail("SaveKernel", "late", wait_s=0.5)
    with pytest.raises(UnknownOutcomeError):
        kaggle.push(kernel(ref))
    assert kaggle.find(ref) is None
    until(lambda: kaggle.find(ref) is not None, "the push")
    assert stand_in.state.pushes == [f"{ref}/1"]


def test_a_kernel_is_not_missing_because_nothing_may_be_asked(stand_in, kaggle, fresh):
    """403 is also what credentials get that have lost their rights: then nobody knows, and a push must not follow."""
    stand_in.fail("GetKernel", "status", status=403, message="denied")
    stand_in.fail("GetAcceleratorQuotaStatistics", "status", status=403, message="denied")
    with pytest.raises(ServiceError) as caught:
        kaggle.find(fresh())
    assert caught.value.reason == Reason.FORBIDDEN


REFUSALS = [
    (400, "no such shape", Reason.BAD_REQUEST, ServiceError),
    (401, "Unauthenticated", Reason.UNAUTHORIZED, AuthRefusedError),
    (403, "denied", Reason.FORBIDDEN, ServiceError),
    (404, "", Reason.NOT_FOUND, ServiceError),
    (409, "title in use", Reason.CONFLICT, ServiceError),
    (413, "", Reason.TOO_LARGE, ServiceError),
    (429, "", Reason.RATE_LIMIT, ServiceError),
]


@pytest.mark.parametrize("method", ["SaveKernel", "GetKernelSessionStatus"])
@pytest.mark.parametrize(("status", "message", "reason", "kind"), REFUSALS, ids=str)
def test_a_refusal_has_its_reason(stand_in, kaggle, fresh, method, status, message, reason, kind):
    """As JSON and as a page of HTML. A push that was refused is no unsettled one."""
    ref = fresh()
    stand_in.fail(method, "status", status=status, message=message, headers={"Location": stand_in.endpoint})
    with pytest.raises(kind) as caught:
        kaggle.push(kernel(ref)) if method == "SaveKernel" else kaggle.status(ref)
    assert not isinstance(caught.value, UnknownOutcomeError)
    assert caught.value.reason == reason
    assert message in str(caught.value)
    assert str(ref) in str(caught.value)
    assert not stand_in.state.pushes


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ({"kind": "lost"}, Reason.BROKEN_OFF),
        ({"kind": "silent", "wait_s": 5.0}, Reason.SILENT),
        (
            {"kind": "status", "status": 302, "headers": {"Location": "https://192.0.2.1/"}},
            Reason.SERVER_ERROR,
        ),
        ({"kind": "status", "status": 500}, Reason.SERVER_ERROR),
        ({"kind": "status", "status": 503, "message": "busy"}, Reason.SERVER_ERROR),
        ({"kind": "status", "status": 429}, Reason.RATE_LIMIT),
        ({"kind": "status", "status": 200}, Reason.MALFORMED),
        ({"kind": "broken"}, Reason.MALFORMED),
    ],
    ids=str,
)
def test_a_service_that_does_not_answer_is_unreachable_which_is_not_failed(
    stand_in, kaggle, fresh, fault, reason, monkeypatch
):
    """Whoever asks for a run's state treats it as a host that does not answer."""
    monkeypatch.setattr(service_wire, "READ_S", 0.3)
    stand_in.fail("GetAcceleratorQuotaStatistics", **fault)
    began = time.monotonic()
    with pytest.raises(UnreachableError) as caught:
        kaggle.quota()
    assert isinstance(caught.value, ServiceUnreachableError)
    assert caught.value.reason == reason
    assert time.monotonic() - began < 3


def test_what_the_service_says_stays_in_one_line_without_our_secret(stand_in, kaggle):
    """It may repeat what we sent, also at the place where its words are cut; a line of its own would look like ours."""
    words = f"bad \x1b[2J\r\n  then type   rm -rf {'x' * 250} key-of-alice"
    stand_in.fail("GetAcceleratorQuotaStatistics", "status", status=400, message=words)
    with pytest.raises(ServiceError) as caught:
        kaggle.quota()
    said = str(caught.value)
    assert said.isprintable()
    assert "bad" in said
    assert "key" not in said


def test_a_rate_limit_says_how_long_to_wait(stand_in, kaggle):
    """In seconds, or as a date by the service's own clock, which may differ from ours."""
    stand_in.habits.skew_s = -7200
    for value, least, most in (("17", 17, 17), (stand_in_date(stand_in, 30), 25, 31), ("soon", None, None)):
        stand_in.fail("GetAcceleratorQuotaStatistics", "status", status=429, headers={"Retry-After": value})
        with pytest.raises(ServiceError) as caught:
            kaggle.quota()
        assert caught.value.reason == Reason.RATE_LIMIT
        assert caught.value.retry_s is None if least is None else least <= caught.value.retry_s <= most


def stand_in_date(stand_in, later_s):
    from email.utils import formatdate

    return formatdate(time.time() + stand_in.habits.skew_s + later_s, usegmt=True)


@pytest.mark.parametrize(
    ("status", "reason", "kind"),
    [(401, Reason.UNAUTHORIZED, AuthRefusedError), (403, Reason.FORBIDDEN, ServiceError)],
)
def test_a_clock_that_differs_is_named_when_a_call_is_refused(stand_in, kaggle, status, reason, kind):
    """Not otherwise: the calls themselves do not depend on it. The refusal keeps its reason."""
    stand_in.habits.skew_s = 3600
    assert kaggle.quota().gpu_quota.left_s > 0
    stand_in.fail("GetAcceleratorQuotaStatistics", "status", status=status, message="token used too early")
    with pytest.raises(kind, match=r"clock: it is 3[56]\d\d s behind Kaggle's") as caught:
        kaggle.quota()
    assert caught.value.reason == reason


def test_a_kernel_that_does_not_show_yet_is_not_gone_by_a_wrong_clock(stand_in, account, fresh):
    """Kaggle's 403 for a late kernel has the same meaning at any hour."""
    ref = fresh()
    account.service.push(kernel(ref, WAITS))
    stand_in.habits.skew_s = 400
    for method in ("GetKernelSessionStatus", "GetKernel"):
        stand_in.fail(method, "status", status=403, message="Permission 'kernels.get' was denied")
    assert account.look(str(ref)).status is None
    assert account.look(str(ref)).status in ("queued", "running")


def test_the_errors_in_a_good_answer(stand_in, kaggle, fresh):
    """The session limit, the quota, and any other: none of them is an accepted push."""
    refs = [fresh() for _ in range(2)]
    for ref in refs:
        kaggle.push(kernel(ref, WAITS, machine="NvidiaTeslaT4"))
    with pytest.raises(ServiceError, match="session count of 2") as caught:
        kaggle.push(kernel(fresh(), machine="NvidiaTeslaT4"))
    assert caught.value.reason == Reason.SESSION_LIMIT
    assert kaggle.quota().gpu_quota.reserved_s > 60
    for ref in refs:
        kaggle.delete(ref)
    stand_in.habits.used_s = stand_in.habits.quota_s
    with pytest.raises(ServiceError) as caught:
        kaggle.push(kernel(fresh(), machine="NvidiaTeslaT4"))
    assert caught.value.reason == Reason.QUOTA
    assert kaggle.quota().gpu_quota.left_s == 0
    with pytest.raises(ServiceError, match="NvidiaVoodoo") as caught:
        kaggle.push(kernel(fresh(), machine="NvidiaVoodoo"))
    assert caught.value.reason == Reason.REFUSED
    assert len(stand_in.state.pushes) == 2


def test_sources_that_do_not_exist_are_named_though_the_session_runs(stand_in, kaggle, fresh):
    """The service drops them in silence; the answer says so."""
    ref = fresh()
    pushed = kaggle.push(kernel(ref, datasets=("alice/none",), kernels=("alice/gone",), models=("a/b/c/d",)))
    assert set(pushed.dropped) == {"alice/none", "alice/gone", "a/b/c/d"}
    assert stand_in.wait_for(str(ref), "COMPLETE")


def test_a_retired_accelerator_is_substituted_and_it_shows(kaggle, fresh):
    """The push succeeds. What GetKernel says of the machine is the stand-in's guess: a script has to look for itself."""
    ref = fresh()
    kaggle.push(kernel(ref, machine="NvidiaTeslaP100"))
    assert kaggle.find(ref).metadata.machine_shape == "NvidiaTeslaT4"


@pytest.mark.parametrize(
    "values",
    [
        {"ref": KernelRef("alice", "a" * 51)},
        {"ref": KernelRef("alice", "abc")},
        {"ref": KernelRef("alice", "Not-A-Slug")},
        {"ref": KernelRef("alice", "two--dashes")},
        {"source": "é" * 450_001},
        {"timeout_s": 0},
    ],
    ids=lambda values: next(iter(values)),
)
def test_what_kaggle_would_not_take_is_no_kernel(values):
    """A title of 51 characters is an internal server error there, and a slug must be its own title's."""
    good = {"ref": KernelRef("alice", "a" * 50), "source": "é" * 450_000, "machine": "None", "timeout_s": 1}
    assert NewKernel(**good)
    with pytest.raises(ValidationError):
        NewKernel(**good | values)


def test_links_that_have_expired_are_named_and_new_ones_work(stand_in, kaggle, fresh):
    """A page of XML never passes for an output. A link goes without our credentials."""
    ref = fresh()
    kaggle.push(kernel(ref))
    stand_in.wait_for(str(ref), "COMPLETE")
    (file,) = kaggle.outputs(ref)
    stand_in.expire_links()
    with pytest.raises(ServiceError, match=r"result\.txt.*expired") as caught:
        list(kaggle.download(file))
    assert caught.value.reason == Reason.LINK_EXPIRED
    assert "Signature" not in str(caught.value) + repr(file)
    assert contents(kaggle, ref) == {"result.txt": b"done"}
    for fault in ("lost", "half"):
        stand_in.fail("link", fault)
        with pytest.raises(ServiceUnreachableError) as caught:
            contents(kaggle, ref)
        assert caught.value.reason == Reason.BROKEN_OFF
        assert "Signature" not in str(caught.value)
    for status in (202, 206):
        stand_in.fail("link", "status", status=status)
        with pytest.raises(ServiceUnreachableError) as caught:
            contents(kaggle, ref)
        assert caught.value.reason == Reason.MALFORMED
    assert {line["auth"] for line in stand_in.calls("link")} == {""}


@pytest.mark.parametrize(
    "fault",
    [{"kind": "status", "status": 200}, {"kind": "status", "status": 202}, {"kind": "broken"}],
    ids=["html", "202", "cut"],
)
def test_a_deletion_without_an_answer_that_can_be_read_is_none(stand_in, kaggle, fresh, fault):
    """A page of a proxy says nothing of the kernel, whose session goes on. Kaggle's own client needs JSON too."""
    ref = fresh()
    kaggle.push(kernel(ref, WAITS))
    kaggle.create_dataset("launch-0123abcd", [])
    deletions = {
        "DeleteKernel": lambda: kaggle.delete(ref),
        "DeleteDataset": lambda: kaggle.delete_dataset("launch-0123abcd"),
    }
    for method, delete in deletions.items():
        stand_in.fail(method, **fault)
        with pytest.raises(ServiceUnreachableError) as caught:
            delete()
        assert caught.value.reason == Reason.MALFORMED
        assert not [line for line in stand_in.calls(method) if line["accepted"]]
        delete()
        assert [line for line in stand_in.calls(method) if line["accepted"]]


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "/etc/passwd", "a/../../b", ""])
def test_an_output_that_would_lie_elsewhere_is_refused(stand_in, kaggle, name):
    """A name comes from a script that anybody may have written."""
    page = {"files": [{"fileName": "good", "url": "https://x/"}, {"fileName": name, "url": "https://x/"}]}
    stand_in.fail("ListKernelSessionOutput", "answer", values=page)
    with pytest.raises(ServiceError) as caught:
        list(kaggle.outputs(KernelRef("alice", "launch-toy")))
    assert caught.value.reason == Reason.MALFORMED


@pytest.mark.parametrize("values", [{"status": 2}, {"status": ["COMPLETE"]}])
def test_a_wrong_field_is_not_its_default(stand_in, kaggle, values):
    """A status that cannot be read is not QUEUED."""
    stand_in.fail("GetKernelSessionStatus", "answer", values=values)
    with pytest.raises(ServiceError) as caught:
        kaggle.status(KernelRef("alice", "launch-toy"))
    assert caught.value.reason == Reason.MALFORMED


def test_a_status_of_a_later_version_is_no_end(stand_in, kaggle):
    """Nor is it an error: the session may go on."""
    stand_in.fail("GetKernelSessionStatus", "answer", values={"status": "HIBERNATED", "more": None})
    account = Account(KaggleSettings(api=stand_in.base), "alice")
    account._service = kaggle
    assert account.look("alice/launch-toy").status == "running"


@pytest.mark.parametrize(
    ("values", "status"),
    [
        ([{"stream_name": "stdout", "time": 1.0, "data": "done"}], "over"),
        ([], None),
        ({"code": 0}, None),
        ({"message": "try later"}, None),
    ],
    ids=str,
)
def test_only_a_log_says_that_a_session_has_ended_whose_status_fails(stand_in, account, values, status):
    """An error in JSON does not: the kernel would be deleted while it runs."""
    stand_in.fail("GetKernelSessionStatus", "status", status=503)
    stand_in.fail("log", "answer", values=values)
    if status is None:
        with pytest.raises(ServiceUnreachableError) as caught:
            account.look("alice/launch-toy")
        assert caught.value.reason == Reason.SERVER_ERROR
    else:
        assert account.look("alice/launch-toy").status == status


def test_an_answer_without_end_is_cut_short(stand_in, kaggle, monkeypatch):
    """The client's memory is not the service's to fill."""
    monkeypatch.setattr(service_wire, "ANSWER_BYTES", 1000)
    stand_in.fail("GetAcceleratorQuotaStatistics", "answer", values={"quotaRefreshTime": "x" * 5000})
    with pytest.raises(ServiceError) as caught:
        kaggle.quota()
    assert caught.value.reason == Reason.TOO_LARGE


def test_a_private_dataset_of_files_and_a_kernel_that_reads_it(stand_in, kaggle, fresh, tmp_path):
    """Upload, make, mount, delete. An empty file is one too; a name in use is refused; a lost link is named."""
    for name, data in (("code.bin", b"\0\1" * 300_000), ("empty", b"")):
        (tmp_path / name).write_bytes(data)
    tokens = [kaggle.upload(tmp_path / name) for name in ("code.bin", "empty")]
    kaggle.create_dataset("launch-0123abcd", tokens)
    assert kaggle.dataset_status("launch-0123abcd").is_ready
    with pytest.raises(ServiceError, match="already in use") as caught:
        kaggle.create_dataset("launch-0123abcd", tokens)
    assert caught.value.reason == Reason.REFUSED
    reads = "import os, pathlib\nroot = os.environ.get('LAUNCH_KAGGLE_INPUT', '/kaggle/input')\n"
    reads += "for file in pathlib.Path(root).rglob('*'):\n    if file.is_file(): open(file.name, 'wb').write(file.read_bytes())\n"
    ref = fresh()
    kaggle.push(kernel(ref, reads, datasets=("alice/launch-0123abcd",)))
    stand_in.wait_for(str(ref), "COMPLETE")
    assert contents(kaggle, ref) == {"code.bin": b"\0\1" * 300_000, "empty": b""}
    (made,) = (line["body"] for line in stand_in.calls("CreateDataset") if line["accepted"])
    assert made["isPrivate"] is True
    kaggle.delete_dataset("launch-0123abcd")
    stand_in.fail("upload", "status", status=404)
    with pytest.raises(ServiceError) as caught:
        kaggle.upload(tmp_path / "code.bin")
    assert caught.value.reason == Reason.LINK_EXPIRED


def test_without_a_network_the_reason_comes_within_a_second(tmp_path, stand_in):
    """A refused connection; a name that nobody resolves."""
    for base in ("http://127.0.0.1:9/v1", "https://kaggle.invalid/v1"):
        began = time.monotonic()
        with pytest.raises(ServiceUnreachableError, match="is the network up") as caught:
            log_in(KEY, tmp_path, base).push(kernel(KernelRef("alice", "launch-toy")))
        assert caught.value.reason == Reason.NO_NETWORK
        assert isinstance(caught.value, HostError)
        assert time.monotonic() - began < 1


@pytest.mark.testbed
def test_on_a_machine_without_any_network(tmp_path):
    """The real address is asked there, where nothing can be reached."""
    code = (
        "import time, pathlib\nfrom launcher.errors import LaunchError\nfrom launcher.backends.kaggle.kaggle_service import log_in\n"
        "service = log_in({'KAGGLE_USERNAME': 'a', 'KAGGLE_KEY': 'b'}, pathlib.Path('.'))\nbegan = time.monotonic()\n"
        "try:\n    service.quota()\nexcept LaunchError as error:\n"
        "    print(error.reason, time.monotonic() - began < 1, error.exit_code)\n"
    )
    isolated = ["unshare", "--net", sys.executable, "-c", code]
    done = subprocess.run(isolated, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["no-network", "True", "4"]


def test_a_resolver_that_never_answers_costs_no_more_than_the_connect_deadline(tmp_path, monkeypatch):
    """The C library would wait for it, and cannot be interrupted."""
    monkeypatch.setattr(service_wire, "CONNECT_S", 0.3)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: time.sleep(3))
    began = time.monotonic()
    with pytest.raises(ServiceUnreachableError, match=r"no resolver answers.*api\.kaggle\.com") as caught:
        log_in(KEY, tmp_path).quota()
    assert caught.value.reason == Reason.NO_NETWORK
    assert time.monotonic() - began < 2


def test_credentials_go_to_https_alone(tmp_path):
    """Except on this machine's loopback."""
    with pytest.raises(UsageError, match="https"):
        log_in(KEY, tmp_path, "http://api.kaggle.com/v1")
