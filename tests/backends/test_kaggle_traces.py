"""What people who use Kaggle saw it do, each by one trace: nobody here has met the service itself."""

import pytest
from testbed.client import until

from launcher.backends.kaggle import kaggle_log
from launcher.backends.kaggle.kaggle_credentials import logins
from launcher.backends.kaggle.kaggle_kernel import KaggleReason as Reason
from launcher.backends.kaggle.kaggle_kernel import KernelRef, NewKernel, SessionStatus
from launcher.errors import ServiceError, ServiceUnreachableError

REF = KernelRef("alice", "launch-toy-1")
WAITS = "import time; time.sleep(60)"
WRITES = "open('result.txt', 'w').write('done')\n"


def kernel(machine="None", ref=REF):
    return NewKernel(ref=ref, source=WRITES, machine=machine, timeout_s=60)


def test_a_session_without_a_card_names_no_machine(kaggle, stand_in):
    """The word "None" is refused (2026-09)."""
    kaggle.push(kernel())
    kaggle.push(kernel("NvidiaTeslaT4", KernelRef("alice", "launch-toy-2")))
    sent = [line["body"].get("machineShape") for line in stand_in.calls("SaveKernel")]
    assert sent == [None, "NvidiaTeslaT4"]
    assert "machineShape" not in stand_in.calls("SaveKernel")[0]["body"]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_does_not_exist_is_missing_whatever_the_number(kaggle, stand_in, status):
    """Kaggle's own client takes 401 and 403 alike for a wrong slug; valid credentials are not called wrong."""
    stand_in.fail("GetKernel", kind="status", status=status, message="denied")
    assert kaggle.find(REF) is None
    stand_in.fail("GetKernel", kind="status", status=status, message="denied")
    stand_in.fail("GetAcceleratorQuotaStatistics", kind="status", status=401, message="Unauthenticated")
    if status != 404:
        with pytest.raises(ServiceError) as caught:
            kaggle.find(REF)
        assert caught.value.reason == Reason.UNAUTHORIZED


def test_an_error_in_googles_form_has_its_reason(kaggle, stand_in, monkeypatch):
    """`{"error": {"code": 409, "message": …}}` beside a `message` at the top."""
    body = b'{"error": {"code": 409, "message": "slug in use", "status": "ALREADY_EXISTS"}}'
    monkeypatch.setattr("testbed.kaggle_service.HTML", body)
    stand_in.fail("SaveKernel", kind="status", status=409, headers={"Content-Type": "application/json"})
    with pytest.raises(ServiceError, match="409 slug in use"):
        kaggle.push(kernel())


def test_an_account_without_a_phone_is_told_so(kaggle, stand_in):
    """The likeliest first refusal of all."""
    message = "Permission 'kernelSessions.enableInternet' was denied"
    stand_in.fail("SaveKernel", kind="status", status=403, message=message)
    with pytest.raises(ServiceError, match=r"verify your phone at \S+, or run without internet") as caught:
        kaggle.push(kernel())
    assert caught.value.reason == Reason.NO_PHONE


def test_an_access_token_in_the_place_of_a_key_is_one(tmp_path):
    """With Basic it is answered by 401."""
    found = [*logins({"KAGGLE_USERNAME": "alice", "KAGGLE_KEY": "KGAT_abc"}, tmp_path)]
    assert [(one.kind, one.header()) for one in found] == [("token", "Bearer KGAT_abc")]


@pytest.mark.parametrize(
    "word", ["complete", "COMPLETE", "KernelWorkerStatus.COMPLETE", "KERNEL_WORKER_STATUS_COMPLETE"]
)
def test_a_status_is_read_in_any_case_and_behind_a_prefix(word):
    assert SessionStatus.model_validate({"status": word}).status == "COMPLETE"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'[{"data": "a"}\n,{"data": "b"}\n,{"da', ["a", "b", "launch: Kaggle's log is cut here\n"]),
        (b'[{"data": "a"}', ["a", "launch: Kaggle's log is cut here\n"]),
        (b'[{"data": "a"}]', ["a"]),
    ],
)
def test_a_log_that_is_cut_is_read_as_far_as_it_goes(text, found):
    class Log:
        def pieces(self):
            yield text

    assert [item["data"] for item in kaggle_log._items(Log(), REF)] == found


@pytest.mark.parametrize(("hops", "is_followed"), [(1, True), (3, True), (4, False)])
def test_a_link_is_followed_over_three_redirects(kaggle, stand_in, hops, is_followed):
    kaggle.push(kernel())
    stand_in.wait_for(str(REF), "COMPLETE")
    (file,) = kaggle.outputs(REF)
    for _ in range(hops):
        stand_in.fail("link", kind="status", status=302, headers={"Location": file.url})
    if is_followed:
        assert b"".join(kaggle.download(file)) == b"done"
    else:
        with pytest.raises(ServiceUnreachableError, match="leads on and on"):
            b"".join(kaggle.download(file))


def test_a_redirect_to_another_host_gets_no_credentials_and_none_leaves_https(kaggle, stand_in):
    """The log of a session is asked for with the key, its file elsewhere without."""
    kaggle.push(kernel())
    stand_in.wait_for(str(REF), "COMPLETE")
    (file,) = kaggle.outputs(REF)
    elsewhere = file.url.replace("127.0.0.1", "localhost")
    stand_in.fail("log", kind="status", status=302, headers={"Location": elsewhere})
    with kaggle.open_log(REF, 5.0) as log:
        assert b"".join(log.pieces()) == b"done"
    assert [line["auth"] for line in stand_in.calls() if line["method"] in ("log", "link")] == ["basic", ""]
    stand_in.fail("link", kind="status", status=302, headers={"Location": "http://example.invalid/x"})
    with pytest.raises(ServiceUnreachableError, match="without HTTPS"):
        b"".join(kaggle.download(file))


def test_where_the_status_call_fails_the_log_tells_whether_a_session_has_ended(stand_in, account):
    """500 for good while outputs and log were served (2026-06)."""
    prints = f"print('begun', flush=True); {WAITS}"
    account.service.push(NewKernel(ref=REF, source=prints, machine="None", timeout_s=60))
    session = stand_in.wait_for(str(REF), "RUNNING")
    until(lambda: session.log, "what it prints")
    stand_in.fail("GetKernelSessionStatus", kind="status", status=500, times=100)
    assert account.look(str(REF)).status == "running"
    session.break_down()
    stand_in.wait_for(str(REF), "ERROR")
    assert account.look(str(REF)).status == "over"
    stand_in.fail("log", kind="status", status=503)
    with pytest.raises(ServiceUnreachableError):
        account.look(str(REF))
