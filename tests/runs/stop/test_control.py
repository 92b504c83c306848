"""What a host says of its runs: checked, whatever it is, before a verb makes anything of it."""

import contextlib
from json import dumps as dump

import hypothesis
import pytest
from hypothesis import strategies
from testbed.stream import Stream

from launcher.copy.local_copy import LocalCopy
from launcher.errors import ConnectionLostError, MalformedAnswerError, SeveralRunsError, UnknownNameError
from launcher.runs.follow.summaries import runs_of
from launcher.runs.locating import _named_there, locate
from launcher.runs.run_listing import listing
from launcher.transport.channel import AgentReply
from launcher.transport.client.host_client import HostClient
from launcher.values.host import Host

FIELDS = ["run", "state", "reason", "attempt", "step", "steps", "loss", "job", "card", "time", "evidence"]
json = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats()
    | strategies.text(),
    lambda inner: (
        strategies.lists(inner, max_size=3)
        | strategies.dictionaries(strategies.sampled_from(FIELDS), inner, max_size=4)
    ),
    max_leaves=8,
)


class Told:
    """An agent that answers one thing."""

    host = "there"

    def __init__(self, values):
        self._values = values

    def receive_stream(self, _verb, take, *_payload, **_args):
        """Send it, a line for each."""
        take(Stream("".join(f"{dump(value)}\n" for value in self._values).encode()))
        return AgentReply({}, b"")


GOOD = {"run": "1120-sft-w8q2", "state": "running", "step": 3, "loss": "nan", "time": 1.0}


def test_a_summary_is_told_as_it_is():
    """With whatever a newer host adds left out."""
    (summary,) = HostClient(Told([{**GOOD, "mood": "fine"}])).runs.summaries()
    values = summary.model_dump()
    assert {key: values[key] for key in GOOD} == GOOD
    assert "mood" not in values


@hypothesis.given(json)
def test_what_is_no_summary_is_left_out(told):
    """Any JSON at all beside a good one."""
    desk = HostClient(Told([*(told if isinstance(told, list) else [told]), GOOD]))
    with contextlib.suppress(MalformedAnswerError):  # a number is a sign of life, which has bounds
        assert GOOD["run"] in [summary.run for summary in desk.runs.summaries()]
        assert [summary.run for summary in runs_of(desk, [GOOD["run"]])] == [GOOD["run"]]


@hypothesis.given(json, json)
def test_any_state_is_one_or_a_broken_answer(tmp_path_factory, state, evidence):
    """A view is never handed a state that it cannot show."""
    local_copy = LocalCopy("1120-sft-w8q2", tmp_path_factory.getbasetemp())
    for told in (state, {"state": "failed", "evidence": evidence}):
        with contextlib.suppress(ConnectionLostError):
            news = local_copy.sync.apply(
                AgentReply({"state": told, "parts": [], "last": [], "is_full": False}, b"")
            )
            assert isinstance(news.state.state, str)
            assert isinstance(news.state.evidence or {}, dict)


def test_a_state_that_no_run_has_is_no_empty_list():
    """`--state faild` would look as if nothing had failed."""
    with pytest.raises(UnknownNameError, match="did you mean 'failed'"):
        listing(None, ("faild",))


def test_of_several_runs_of_a_name_the_latest_launched_comes_first(tmp_path, monkeypatch):
    """Whatever their ids are: random letters say nothing of the order."""
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path))
    for launched, run in enumerate(("261125-nocp-f4wadb", "261125-nocp-zzzzzz", "261125-nocp-bnfp3a"), 1):
        LocalCopy(run, tmp_path).bind_seen(Host(name="lab"), "", float(launched))
    with pytest.raises(SeveralRunsError, match=r"3 runs: bnfp3a, zzzzzz, f4wadb\n.*e\.g\. bnfp3a "):
        locate("nocp", None)


def test_a_name_of_a_chain_of_resumes_means_its_last_run(tmp_path, monkeypatch):
    """Another run of that name makes it ambiguous again."""
    monkeypatch.setenv("LAUNCH_RUNS", str(tmp_path))
    runs = ("261125-chain-zzzzzz", "261125-chain-bbbbbb", "261125-chain-mmmmmm")
    for launched, (run, parent) in enumerate(zip(runs, ("261124-other-aaaaaa", *runs), strict=False), 1):
        local_copy = LocalCopy(run, tmp_path)
        local_copy.bind_seen(Host(name="lab"), "", float(launched))
        start = {"kind": "attempt", "parent": {"run": parent, "checkpoint": "x", "step": 1}}
        (local_copy.folder / "0001").mkdir()
        (local_copy.folder / "0001" / "attempt.json").write_text(dump(start))
    assert locate("chain", None)[1].run == runs[-1]
    LocalCopy("261125-chain-cccccc", tmp_path).bind_seen(Host(name="lab"), "", 4.0)
    with pytest.raises(SeveralRunsError, match="4 runs: cccccc, mmmmmm, "):
        locate("chain", None)


def test_of_several_runs_of_a_name_on_a_host_the_latest_comes_first():
    """By the time that the host says; a run without one is the oldest."""
    runs = [("261125-nocp-zzzzzz", 1.0), ("261125-nocp-aaaaaa", 2.0), ("261125-nocp-mmmmmm", None)]
    told = Told([{**GOOD, "run": run, "time": began} for run, began in runs])
    with pytest.raises(SeveralRunsError, match="3 runs: aaaaaa, zzzzzz, mmmmmm\n"):
        _named_there(HostClient(told), "nocp")
