"""A push at Kaggle whose answer is lost, late, or no: each segment exists once, and the state says what it waits for."""

import json

import pytest
from testbed.kaggle_state import BUSY
from testbed.tables import mostly_long

pytestmark = [
    pytest.mark.testbed,
    pytest.mark.slow(reason="each test starts clients and a session"),
]
HTML_BUSY = {"status": 429, "headers": {"Retry-After": "1"}}


def only_run(account):
    (run,) = [path.name for path in account.client.runs.glob("[0-9]*")]
    return run


@pytest.mark.parametrize(
    ("kind", "values", "segments"),
    [
        ("lost", {}, [1]),
        pytest.param("accepted", {"status": 503}, [1], marks=pytest.mark.long),
        pytest.param("late", {"wait_s": 0.5}, [1], marks=pytest.mark.long),
        pytest.param("cut", {}, [2], marks=pytest.mark.long),
        pytest.param("status", {"status": 500}, [2], marks=pytest.mark.long),
        pytest.param("broken", {}, [2], marks=pytest.mark.long),
    ],
    ids=["lost", "accepted", "late", "cut", "500", "broken"],
)
def test_a_push_without_an_answer_is_settled_by_looking(kaggle_account, kind, values, segments):
    """What was accepted is followed; what never arrives is pushed again under another name, once."""
    kaggle_account.hurry()
    kaggle_account.service.fail("SaveKernel", kind, **values)
    said = kaggle_account.client.seen(*kaggle_account.words())
    run = only_run(kaggle_account)
    assert "succeeded" in said
    assert kaggle_account.pushes() == [f"alice/launch-{run}-{number}/1" for number in segments]
    assert kaggle_account.steps() == [*range(1, 13)]
    assert kaggle_account.kernels() == []


@pytest.mark.long
def test_a_push_that_appears_when_nobody_waits_for_it_any_more_is_deleted(kaggle_account):
    """Another has been pushed by then: the late one ends, and the run with the other."""
    kaggle_account.hurry()
    kaggle_account.pause_at(5)
    kaggle_account.service.fail("SaveKernel", "late", wait_s=4.0)
    run = kaggle_account.detached()
    first, second = (f"alice/launch-{run}-{number}" for number in (1, 2))
    kaggle_account.until(lambda: first in kaggle_account.kernels())
    session = kaggle_account.session(run, 1)
    assert kaggle_account.row(run)["state"] in ("preparing", "running")  # nobody reads its log
    assert kaggle_account.kernels() == [second]
    assert session.status == "CANCEL_ACKNOWLEDGED"
    kaggle_account.go_on()
    assert "succeeded" in kaggle_account.client.seen("attach", run)
    assert sorted(kaggle_account.pushes()) == [f"{first}/1", f"{second}/1"]
    assert kaggle_account.kernels() == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"kind": "answer", "values": {"error": BUSY.format(2)}}, "Maximum batch GPU session count of 2"),
        ({"kind": "status", **HTML_BUSY}, "429"),
    ],
)
def test_a_service_without_room_is_asked_again(kaggle_account, fault, words):
    """The run is reserved, also for `ps`; a client that follows pushes it as soon as there is room, under a new name."""
    kaggle_account.hurry()
    fault = dict(fault)
    kaggle_account.service.fail("SaveKernel", fault.pop("kind"), times=3, **fault)
    told = kaggle_account.client.run("--detach", *kaggle_account.words()).stderr
    assert "no session yet" in told
    assert words in told
    assert "the run continues" not in told
    run = only_run(kaggle_account)
    row = kaggle_account.row(run)
    assert (row["state"], row["reason"]) == ("reserved", None)
    assert words in str(row["evidence"])
    assert f"launch attach {run[-6:]}" in kaggle_account.client.ok("ps")
    assert kaggle_account.pushes() == []
    assert "succeeded" in kaggle_account.client.seen("attach", run)
    assert kaggle_account.pushes() == [f"alice/launch-{run}-4/1"]
    assert len(kaggle_account.service.calls("SaveKernel")) == 4
    assert kaggle_account.steps() == [*range(1, 13)]


@pytest.mark.long
def test_a_client_killed_between_its_intent_and_the_push_leaves_a_run_that_another_pushes(kaggle_account):
    """The next one finds that nothing has arrived, and pushes it once."""
    kaggle_account.hurry()
    kaggle_account.service.fail("SaveKernel", "silent", wait_s=60.0)
    process = kaggle_account.client.start(*kaggle_account.words())
    kaggle_account.until(lambda: kaggle_account.service.calls("SaveKernel"))
    process.kill()
    process.communicate()
    run = only_run(kaggle_account)
    assert kaggle_account.segment(run)["status"] == "unsettled"
    assert "succeeded" in kaggle_account.client.seen("attach", run)
    assert kaggle_account.pushes() == [f"alice/launch-{run}-2/1"]
    assert kaggle_account.steps() == [*range(1, 13)]


@pytest.mark.long
def test_a_client_killed_right_after_the_push_was_accepted_loses_nothing(kaggle_account):
    """The next one finds it, and pushes nothing."""
    kaggle_account.service.fail("SaveKernel", "held", wait_s=60.0)
    process = kaggle_account.client.start(*kaggle_account.words())
    kaggle_account.until(kaggle_account.pushes)
    process.kill()
    process.communicate()
    run = only_run(kaggle_account)
    assert "succeeded" in kaggle_account.client.seen("attach", run)
    kaggle_account.assert_pushed_once(run, 1)


REFUSED = [
    (
        {"kind": "answer", "values": {"error": "You have used up your weekly GPU quota."}},
        "weekly GPU quota",
        4,
    ),
    ({"kind": "status", "status": 401, "message": "Unauthenticated"}, "make a new token at", 4),
    ({"kind": "status", "status": 403, "message": "no"}, "403", 4),
    ({"kind": "status", "status": 404}, "404", 4),
    ({"kind": "status", "status": 409, "message": "the title"}, "409 the title", 4),
    ({"kind": "status", "status": 413}, "413", 4),
]


@mostly_long(("fault", "words", "code"), REFUSED, ids=[words for _, words, _ in REFUSED], ci=(0,))
def test_a_refused_push_leaves_nothing(kaggle_account, fault, words, code):
    """The reason is said; no run is left in the spool, none here, and no kernel."""
    fault = dict(fault)
    kaggle_account.service.fail("SaveKernel", fault.pop("kind"), **fault)
    done = kaggle_account.client.run(*kaggle_account.words())
    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert kaggle_account.kernels() == []
    assert [*(kaggle_account.spool() / "runs").iterdir()] == []
    assert [*kaggle_account.client.runs.glob("[0-9]*")] == []
    assert json.loads(kaggle_account.client.ok("ps", "--json"))["runs"] == []
