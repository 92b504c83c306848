"""The state of a run in a service: its record as it is in the spool, and what the client last heard of its session."""

import json
from pathlib import Path

import pytest
from testbed.toy import recorded_run

from launcher.agent.liveness import predecessor, run_state
from launcher.agent.record.files import write_durably
from launcher.agent.record.rundir import Run
from launcher.values.record import RunState

RUN = "0101-x-aaaa"


def spooled(folder: Path, recorded: str, status: str | None, **more: str) -> Run:
    """A run in a spool whose newest folder is in a state, and what the service said of its session."""
    run = recorded_run(folder, RUN, recorded, kind="attempt", runtime={"kind": "kaggle"})
    if status is not None:
        write_durably(run.service, json.dumps({"version": 1, "segment": 1, "status": status, **more}))
    return run


@pytest.mark.parametrize("status", ["sent", "queued", "running"])
@pytest.mark.parametrize("recorded", ["preparing", "running", "stopping", "resuming"])
def test_a_run_whose_session_is_alive_is_as_it_is_recorded(tmp_path, recorded, status):
    """No lock in a spool is held by the run, so a free one says nothing."""
    state = run_state.state_of(spooled(tmp_path, recorded, status))
    assert (state["state"], state["fate"]) == (recorded, "alive")
    assert RunState.model_validate(state)


def test_a_run_that_waits_for_room_is_reserved(tmp_path):
    """What the service said is shown."""
    state = run_state.state_of(spooled(tmp_path, "preparing", "waiting", words="two sessions run"))
    assert (state["state"], state["evidence"]) == ("reserved", {"service": "two sessions run"})


@pytest.mark.parametrize("status", ["over", "deleted", None])
def test_a_run_whose_session_is_over_before_its_end_is_interrupted(tmp_path, status):
    """Or stopped, by its user's wish; what the service said is its evidence."""
    run = spooled(tmp_path, "running", status, words="it ended in an error")
    state = run_state.state_of(run)
    assert (state["state"], state["fate"]) == ("interrupted", "gone")
    words = "it ended in an error" if status else "it has no session"
    assert state["evidence"] == {"service": words}
    run.write_wish("stop")
    assert (run_state.state_of(run)["state"], run_state.state_of(run)["reason"]) == ("stopped", "by-user")


@pytest.mark.parametrize("status", ["unsettled", "a word of tomorrow"])
def test_a_run_that_the_service_does_not_know_is_in_doubt(tmp_path, status):
    """It may still train: it is neither ended nor started again."""
    run = spooled(tmp_path, "running", status)
    state = run_state.state_of(run)
    assert (state["state"], state["fate"]) == ("running", "silent")
    assert state["evidence"]["service"]
    assert run_state.is_silent(state)


def test_an_end_on_record_counts_whatever_the_service_says(tmp_path):
    """The session of a training that has ended may still send its outputs."""
    assert run_state.state_of(spooled(tmp_path, "succeeded", "running"))["state"] == "succeeded"


def test_no_silence_is_waited_for_where_the_service_says_that_a_session_is_over(tmp_path):
    """The lock of its folder was on another disk, and nothing of it is here."""
    run = spooled(tmp_path, "running", "over")
    attempt = json.loads(Path(run.folder(1).attempt).read_text())
    write_durably(run.folder(1).attempt, json.dumps({**attempt, "device": 1}))
    Path(run.folder(1).lock).unlink()
    assert predecessor.needs_silence(run) is None


@pytest.mark.parametrize(("fruitless", "reason"), [(0, None), (1, None), (2, "no-progress")])
def test_a_run_whose_sessions_leave_no_checkpoint_is_given_up(tmp_path, fruitless, reason):
    """The second one in a row without a checkpoint is the last."""
    run = spooled(tmp_path, "running", "over", fruitless=fruitless)
    run.folder(1).write_state("running", began=True, consumed=["resume"])
    hopeless = run_state.probe_of(run).hopeless(run)
    assert (hopeless and hopeless[:2]) == (reason and ("failed", reason))


def test_a_run_whose_session_somebody_has_deleted_has_been_stopped(tmp_path):
    """It is the only way to stop one on the service's page."""
    run = spooled(tmp_path, "running", "deleted", words="its kernel is gone")
    assert run_state.probe_of(run).hopeless(run) == ("stopped", "by-user", {"service": "its kernel is gone"})


@pytest.mark.parametrize(
    ("recorded", "restart", "reason"),
    [
        ({"began": True, "consumed": ["split"]}, False, "not-restartable"),
        ({"began": True, "consumed": ["resume", "held resume"]}, False, "not-restartable"),
        ({"began": True, "consumed": ["resume"]}, False, None),
        ({"began": True, "consumed": []}, True, None),
        ({"began": False, "consumed": []}, False, None),
    ],
)
def test_a_script_that_cannot_go_on_gets_no_other_session(tmp_path, recorded, restart, reason):
    """A session that ended before the script was started has cost nothing."""
    run = spooled(tmp_path, "running", "over", words="its session has ended")
    run.folder(1).write_state("resuming", "session-limit", **recorded)
    write_durably(run.plan, json.dumps({"restart": restart}))
    hopeless = run_state.probe_of(run).hopeless(run)
    assert (hopeless and hopeless[:2]) == (reason and ("failed", reason))
    assert hopeless is None or "resume_from" in hopeless[2]["why"]
