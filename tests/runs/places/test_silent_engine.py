"""A host whose container engine does not answer: what a person is told, and how a run there is given up."""

import contextlib
import json
import time

import pytest
from testbed.stream import Stream

from launcher.agent.host import leftovers
from launcher.agent.liveness.docker import docker_liveness
from launcher.agent.liveness.run_state import state_of
from launcher.agent.record.files import write_durably
from launcher.agent.record.rundir import Run
from launcher.agent.serving import serve
from launcher.agent.serving.requests import RequestError
from launcher.agent.serving.session import ClientSession
from launcher.agent.system import process
from launcher.agent.verbs.summary import summary
from launcher.cli.commands.look import ps
from launcher.cli.follow.plain_view import PlainView
from launcher.copy.local_copy import LocalCopy
from launcher.copy.record_sync import News
from launcher.errors import EngineError
from launcher.runs import cleaning, run_stopping
from launcher.runs.follow.evidence import words
from launcher.runs.follow.summaries import runs_of
from launcher.runs.follow.view import Result
from launcher.runs.run_listing import ListedRun
from launcher.transport.channel import AgentReply
from launcher.transport.client.host_client import HostClient
from launcher.values.record import PlanSummary, RunState

RUN = "0101-x-abcd"


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A host's agent, and a run in a container of an engine that is not there, whose agent died."""
    monkeypatch.setattr(docker_liveness, "PROBE", docker_liveness.DockerLiveness())
    run = Run(str(tmp_path / "runs" / RUN))
    run.make()
    runtime = {"kind": "docker", "engine": {"name": "docker", "socket": str(tmp_path / "none.sock")}}
    for kind in ("prepare", "attempt"):
        folder = run.new_folder()
        record = {
            "kind": kind,
            "runtime": runtime,
            "place_id": process.host_id(),
            "boot_id": process.boot_id(),
        }
        write_durably(folder.attempt, json.dumps(record))
        folder.write_state("running", attempt=1)
        folder.release()
    write_durably(run.plan, "{}")
    write_durably(run.wish, "run")
    return ClientSession(str(tmp_path), Wire())


def run_of(session):
    return session.run(RUN)


class Wire:
    """What the agent sends in chunks."""

    def __init__(self):
        self.sent = bytearray()

    def write(self, message, payload=b""):
        """Take it."""
        self.sent += payload if "chunk" in message else b""


class There:
    """A client's link to that agent."""

    host = "there"

    def __init__(self, session):
        self._session = session

    def call(self, verb, payload=b"", deadline_s=0, **args):
        """Ask it."""
        reply = serve.answer(self._session, verb, args, payload)
        return AgentReply(json.loads(json.dumps(reply.values)), reply.payload)

    def receive_stream(self, verb, take, payload=b"", wait_s=0, total_s=0, **args):
        """Ask it for a stream."""
        self._session.connection.sent.clear()
        reply = self.call(verb, payload, **args)
        take(Stream(self._session.connection.sent))
        return reply


def test_ps_and_attach_say_that_the_engine_does_not_answer(session, capsys):
    """Not `resuming` alone, for ever; who follows is told once."""
    (summary,) = runs_of(HostClient(There(session)), [RUN])
    assert summary.state == "resuming"
    ps._show([ListedRun("there", summary)], None, [], is_chosen=False, here=False, as_json=False)
    assert "its engine does not answer" in capsys.readouterr().out
    view = PlainView()
    view.begin(RUN, PlanSummary(), [])
    for _ in range(2):
        view.news(News(RunState(state="resuming", evidence=summary.evidence), [], [], is_all=True))
    view.news(News(RunState(state="resuming"), [], [], is_all=True))
    assert capsys.readouterr().err.count("its engine does not answer") == 1


def test_stop_says_so_and_stop_now_gives_the_run_up(session, monkeypatch):
    """In doubt: the engine may hold a container still, whose agent would find the end and leave."""

    def silent(*_):
        raise EngineError("there", "there: its docker does not answer: gone")

    monkeypatch.setattr(run_stopping, "open_for_run", silent)
    with pytest.raises(EngineError, match="launch stop --now abcd"):
        run_stopping.stop(HostClient(There(session)), RUN, now=False, grace_s=0.1)
    row = run_stopping.stop(HostClient(There(session)), RUN, now=True, grace_s=0.1)
    assert (row.summary.state, row.summary.reason) == ("stop-incomplete", "engine-silent")
    assert "does not answer" in ", ".join(words(row.summary.evidence))
    There(session).call("remove", run=RUN)
    assert not runs_of(HostClient(There(session)), [RUN])


def test_a_run_that_ended_by_itself_has_ended_though_its_engine_is_silent(session, monkeypatch):
    """Its agent read the wish; what the engine said instead is told, and is no failure of the stop."""
    folder = run_of(session).new_folder()
    folder.write_state("stopping")

    def silent(*_):
        folder.write_state("stopped", "by-user")
        folder.release()
        raise EngineError("there", "there: its docker does not answer: gone\n  look")

    monkeypatch.setattr(run_stopping, "open_for_run", silent)
    row = run_stopping.stop(HostClient(There(session)), RUN, now=False, grace_s=0.1)
    assert row.summary.state == "stopped"
    assert row.problem == "there: its docker does not answer: gone"


class Engine(contextlib.AbstractContextManager):
    """A container of the run that is up, and what is done in which order."""

    def __init__(self, done):
        self._done = done

    def __exit__(self, *_):
        """Hang up."""

    def stop(self, run, _grace_s):
        """End the container."""
        self._done.append(f"{run} stopped")
        return True

    def remove(self, run):
        """Remove the container."""
        self._done.append(f"{run} removed")


def test_a_container_is_stopped_though_its_job_has_written_that_the_run_has_ended(session, monkeypatch):
    """Nothing but the engine knows whether it is up. A time to come keeps it from no sweep."""
    done = []
    run_of(session).new_folder().write_state("succeeded", time=time.time() + 1e6)
    monkeypatch.setattr(run_stopping, "open_for_run", lambda *_: Engine(done))
    row = run_stopping.stop(HostClient(There(session)), RUN, now=True, grace_s=0.1)
    assert (row.summary.state, row.problem, done) == ("succeeded", None, [f"{RUN} stopped"])
    assert leftovers.ages(session.root, [RUN])[RUN] > 3600


def test_a_container_that_is_up_is_stopped_before_its_run_is_removed(session, monkeypatch, tmp_path):
    """It could write into folders that are being removed, and would then stay up without a run."""
    done = []
    run_of(session).new_folder().write_state("succeeded")
    monkeypatch.setattr(cleaning, "open_for_run", lambda *_: Engine(done))
    monkeypatch.setattr(cleaning, "refresh", lambda *_: None)
    monkeypatch.setattr(cleaning, "_remove", lambda *_: done.append("the run removed"))
    cleaning.free(HostClient(There(session)), LocalCopy(RUN, tmp_path / "mirrors"), "all", None)
    assert done == [f"{RUN} stopped", "the run removed", f"{RUN} removed"]


def test_rm_takes_it_by_force_only(session):
    """And writes the wish before, for an agent that comes back in the same moment."""
    with pytest.raises(RequestError, match="resuming") as caught:
        There(session).call("remove", run=RUN)
    assert caught.value.code == "refused"
    There(session).call("remove", run=RUN, lose="all")
    assert not runs_of(HostClient(There(session)), [RUN])


def test_a_live_agent_is_no_matter_of_the_engines(session):
    """While it holds its lock nobody ends its run behind its back."""
    folder = run_of(session).new_folder()
    folder.write_state("running", attempt=2)
    assert There(session).call("wish", run=RUN, wish="cancel").values["state"] == "running"
    assert summary(run_of(session), state_of(run_of(session)))["evidence"] is None


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        ({"container": {"status": "exited", "exit": 137}}, "its container was killed (exit 137)"),
        ({"container": {"status": "exited", "exit": 137, "oom": True}}, "its container ran out of memory"),
        ({"container": "removed"}, "its container was removed"),
        ({"container": {"status": "exited", "exit": 75}}, "its container ended with 75"),
        ({"container": {"status": "created", "exit": 0}}, "its container was never started"),
        ({"previous": {"folder": 2, "container": {"exit": None, "signal": 9}}}, "the attempt before it, in folder 0002: its container was killed by signal 9"),
        ({"previous": {"folder": 12, "state": None}}, "the attempt before it, in folder 0012"),
        ({"remaining": [{"pid": 7, "start": "1"}]}, "still there: 7"),
        ({"exit": 3, "signal": None, "step": 5}, "exit 3, step 5"),
        ({"class": "nan-divergence", "exit": None, "signal": 9, "step": 5}, "step 5, launcher ended it (signal 9)"),
        ({"class": "preempted", "exit": None, "signal": 9}, "signal 9"),
    ],
)  # fmt: skip
def test_an_end_is_told_in_words(evidence, said, capsys):
    """No Python's dict in front of a person."""
    PlainView().end(
        RUN, RunState(state="interrupted", evidence=evidence), Result(None, {}, None, {}, None, None)
    )
    assert f"    {said}\n" in capsys.readouterr().err


def test_a_doubtful_success_has_its_own_mark_and_its_next_command(capsys):
    """A failure without a class names `launch diagnose` too."""
    none = Result(None, {}, None, {}, None, None)
    doubt = {"class": "user-code-error", "line": "KeyError: 'x'", "why": "the log ends with it"}
    PlainView().end(RUN, RunState(state="succeeded", evidence={"exit": 0, "doubt": doubt}), none)
    said = capsys.readouterr().err
    assert said.startswith("  ! succeeded")
    assert said.endswith(f"next     launch diagnose {RUN.rpartition('-')[2]}\n")
    PlainView().end(RUN, RunState(state="failed", reason="no-completion-marker", evidence={"exit": 0}), none)
    assert "launch diagnose" in capsys.readouterr().err
    PlainView().end(RUN, RunState(state="succeeded", evidence={"exit": 0}), none)
    assert capsys.readouterr().err.startswith("  ✓ succeeded")


def test_a_success_at_a_precision_that_is_not_sound_says_so(capsys):
    """With the rule that is broken, and the command that shows what the card wants."""
    why = "this run used a precision that does not train soundly on this card: a scaler cannot unscale float16 gradients"
    result = Result(None, {}, None, {}, None, None, unsound=why)
    PlainView().end(RUN, RunState(state="succeeded", evidence={"exit": 0}), result)
    said = capsys.readouterr().err
    assert f"! precision: {why}" in said
    assert f"explain  launch explain {RUN.rpartition('-')[2]}" in said


def test_a_run_is_taken_back_only_when_its_engine_says_that_it_has_no_container(session):
    """What was never handed over is cleared away in any case."""
    folder = run_of(session).new_folder()
    session.handed_over[RUN] = folder
    assert There(session).call("take_back", run=RUN).values == {"taken": False}
    session.prepared[RUN] = session.handed_over.pop(RUN)
    assert There(session).call("take_back", run=RUN).values == {"taken": True}
