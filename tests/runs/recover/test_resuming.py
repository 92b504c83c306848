"""What a person sees while a run in a container goes on: its image, where that must be made again."""

import contextlib
import json
from types import SimpleNamespace

import pytest
from testbed.stream import Stream

from launcher.cli.follow.plain_view import PlainView
from launcher.copy.local_copy import LocalCopy
from launcher.errors import InterruptedRunError, RefusedError
from launcher.planning import assembly
from launcher.runs import run_listing
from launcher.runs.resume import recovering, resumed_plan
from launcher.runs.run_listing import ListedRun
from launcher.transport.channel import AgentReply
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host
from launcher.values.job import Job
from launcher.values.record import Summary
from launcher.values.reported.answers import ResumedRun

RUN = "0101-x-abcd"


class There:
    """A host with one run, interrupted, whose container was of an engine."""

    host = "there"

    def receive_stream(self, _verb, take, *_payload, **_args):
        """Tell of it."""
        way = {"name": "docker", "socket": "/s"}
        take(Stream(json.dumps({"run": RUN, "state": "interrupted", "engine": way}).encode() + b"\n"))
        return AgentReply({}, b"")


@pytest.mark.parametrize("steps", [(), ("step 1/2: FROM x", "step 2/2: RUN y")])
def test_an_image_that_is_made_again_is_shown_as_a_stage(tmp_path, monkeypatch, capsys, steps):
    """Minutes without a word otherwise; an image that is there is no stage."""

    def resume(_run, needs):
        for step in steps:
            needs.say(step)
        return ResumedRun(state="resuming")

    docker = contextlib.nullcontext(SimpleNamespace(resume=resume))
    monkeypatch.setattr(recovering, "open_for_run", lambda *_: docker)
    monkeypatch.setattr(recovering, "refresh", lambda *_: None)
    monkeypatch.setattr(
        LocalCopy, "whole_plan", lambda _: SimpleNamespace(image=SimpleNamespace(name="img:1"))
    )
    local_copy = LocalCopy(RUN, tmp_path)
    local_copy.bind_seen(Host(name="there"), "", None)
    found = recovering.recover_on(HostClient(There()), local_copy, recovering.RecoverRequest(), PlainView())
    assert found.outcome == "recovered"
    shown = capsys.readouterr().err
    assert ("✓ image" in shown and "img:1" in shown) is bool(steps)
    assert all(step in shown for step in steps)


def test_a_secret_that_the_host_does_not_say_it_lacks_needs_consent_too(tmp_path, monkeypatch):
    """What is sent is what the host's plan names: it could ask for one variable, and get another with it."""

    def resume(_run, needs):
        return needs.secrets(["HF_TOKEN"])

    monkeypatch.setattr(
        recovering, "open_for_run", lambda *_: contextlib.nullcontext(SimpleNamespace(resume=resume))
    )
    monkeypatch.setattr(recovering, "refresh", lambda *_: None)
    monkeypatch.setattr(LocalCopy, "whole_plan", lambda _: None)
    job = Job(name="x", command=("a",), secrets=("HF_TOKEN", "CLOUD_KEY"))
    monkeypatch.setattr(assembly, "job_of", lambda _plan: job)
    for name in job.secrets:
        monkeypatch.setenv(name, "correct-horse-battery")
    local_copy = LocalCopy(RUN, tmp_path)
    local_copy.bind_seen(Host(name="there"), "", None)
    with pytest.raises(RefusedError, match="asks for your HF_TOKEN, CLOUD_KEY"):
        recovering.recover_on(HostClient(There()), local_copy, recovering.RecoverRequest(), PlainView())


@pytest.mark.parametrize(("state", "outcome"), [("interrupted", "recovered"), ("running", "nothing-to-do")])
def test_a_file_with_secrets_that_is_not_read_is_named(tmp_path, monkeypatch, capsys, state, outcome):
    """The run goes on with the secrets that its host has: whoever gave others would believe that it has those."""

    class Here(There):
        def receive_stream(self, _verb, take, *_payload, **_args):
            take(Stream(json.dumps({"run": RUN, "state": state}).encode() + b"\n"))
            return AgentReply({}, b"")

    native = SimpleNamespace(resume=lambda _run, _needs: ResumedRun(state="resuming"))
    monkeypatch.setattr(recovering, "open_for_run", lambda *_: contextlib.nullcontext(native))
    local_copy = LocalCopy(RUN, tmp_path)
    local_copy.bind_seen(Host(name="there"), "", None)
    request = recovering.RecoverRequest(["my.env"])
    assert recovering.recover_on(HostClient(Here()), local_copy, request, PlainView()).outcome == outcome
    assert f"{RUN}: --env-file was not read" in capsys.readouterr().err


def test_a_run_that_has_not_ended_is_recovered_and_not_resumed(tmp_path):
    """It does not go on by itself: the command that has it go on is named."""
    with pytest.raises(InterruptedRunError, match="launch recover abcd"):
        resumed_plan.check_ended(Summary(run=RUN, state="interrupted"), LocalCopy(RUN, tmp_path), None)


@pytest.mark.parametrize("seen", ["preparing", "running", "interrupted"])
def test_a_run_on_a_host_that_nobody_reaches_is_not_passed_over(monkeypatch, seen):
    """Nobody knows if it needs anything: `--all` may not say that no run does. One that its host has lost is no matter of it."""
    rows = [
        ListedRun("A", Summary(run=RUN, state=seen), "A: refuses the connection", is_unreachable=True),
        ListedRun("B", Summary(run="0101-y-abcd", state=seen), "gone: the host has no such run"),
        ListedRun("B", Summary(run="0101-z-abcd", state="running")),
    ]
    monkeypatch.setattr(run_listing, "_all_own", lambda *_: rows)
    found = recovering.recover_all(None, recovering.RecoverRequest(), PlainView())
    told = [(one.run, one.outcome, one.state, one.words) for one in found]
    assert told == [(RUN, "failed", "unreachable", "A: refuses the connection")]
