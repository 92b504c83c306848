"""What a hostile host leaves in a mirror is data: whatever its records hold, every verb shows it and none stumbles."""

import io
import json

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from rich.console import Console
from testbed.measured import curve

from launcher.cli.commands.look import ps
from launcher.cli.follow.json_view import JsonView
from launcher.cli.follow.plain_view import PlainView
from launcher.cli.follow.terminal_view import TerminalView
from launcher.copy.local_copy import LocalCopy
from launcher.copy.printed_lines import parse_event
from launcher.copy.record_sync import News
from launcher.metrics.curves import write_table
from launcher.runs.follow.following import finish
from launcher.runs.follow.summaries import remembered
from launcher.runs.run_listing import ListedRun
from launcher.values.record import PlanSummary, RunState

pytestmark = pytest.mark.slow(reason="hundreds of generated records in each view")

RUN = "0101-x-abcd"
NUMBERS = st.integers() | st.sampled_from(
    [10**400, -(10**400), 2**63, 1e308, -1e308, float("inf"), float("nan")]
)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text() | st.sampled_from(["\ud800", "nan", "running"])
ANYTHING = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))  # fmt: skip
PLAN = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("job", "steps", "stop_grace_s", "profile"), ANYTHING)
)
STATE = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("state", "reason", "attempt", "step", "loss", "time", "evidence"), ANYTHING)
)
KINDS = st.sampled_from(["metric", "begin", "progress", "state", "done"])
NAMES = st.sampled_from(["loss", "eval_loss", "steps", "done", "total", "stage", "state"])
EVENT = st.fixed_dictionaries(
    {"version": st.just(1), "kind": KINDS, "time": NUMBERS | st.floats(0, 1e9)},
    optional={
        "step": ANYTHING | st.integers(0, 9),
        "attempt": ANYTHING,
        "rank": ANYTHING,
        "values": ANYTHING | st.dictionaries(NAMES, NUMBERS | ANYTHING),
    },
)
ANY_NUMBER_OF_TIMES = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def views():
    """Each of the views, on a standard output that takes what a terminal takes."""
    made = [PlainView(), JsonView(), TerminalView(Console(force_terminal=True))]
    yield made
    for one in made:
        one.close()


@ANY_NUMBER_OF_TIMES
@given(ANYTHING | PLAN, ANYTHING | STATE, ANYTHING)
@example(
    {"stop_grace_s": "soon", "steps": "many", "profile": "T4"}, {"state": 3, "time": "now", "step": []}, []
)
@example(
    {"stop_grace_s": float("inf")}, {"state": "failed", "time": 1e308, "evidence": "none"}, {"time": "x"}
)
def test_any_plan_and_state_of_a_mirror_is_listed_and_followed(tmp_path, views, plan, state, attempt):
    """A text where a number belongs, a number that is none, another shape: as if it had not been said."""
    local_copy = LocalCopy(RUN, tmp_path)
    for number in ("0001", "0002"):
        (local_copy.folder / number).mkdir(parents=True, exist_ok=True)
        (local_copy.folder / number / "attempt.json").write_text(json.dumps(attempt))
    (local_copy.folder / "plan.json").write_text(json.dumps(plan))
    (local_copy.folder / "0002" / "state.json").write_text(json.dumps(state))
    assert 0 < local_copy.record.plan().stop_grace_s <= 3600
    ps._show(
        [ListedRun("host", remembered(local_copy))], None, [], is_chosen=False, here=False, as_json=False
    )
    state = local_copy.state() or RunState(state="preparing")
    for view in views:
        view.begin(RUN, local_copy.record.plan(), [])
        view.news(News(state, [], [], is_all=True))
        finish(local_copy, state, view)


def parsed(told):
    found = (parse_event(json.dumps(one).encode()) for one in told)
    return [event for event in found if event is not None]


@ANY_NUMBER_OF_TIMES
@given(st.lists(EVENT, max_size=8))
@example([{"version": 1, "kind": "metric", "time": t, "step": s, "values": {"loss": 1}} for t, s in ((-1e308, 1), (1e308, 2))])  # fmt: skip
@example([{"version": 1, "kind": "begin", "time": 1.0, "values": {"steps": 10**400}}])
@example([{"version": 1, "kind": "metric", "time": 1.0, "step": 10**400, "values": {"loss": 1}}])
@example([{"version": 1, "kind": "progress", "time": 1.0, "values": {"done": 10**400 - 1, "total": 10**400}}])
def test_any_event_is_shown_or_left_out(views, told):
    """Times, steps and values beyond all measure are never an error of ours."""
    events = parsed(told)
    for view in views:
        view.begin(RUN, PlanSummary(), [])
        view.news(News(RunState(state="running"), events, [], is_all=True))
        view.news(News(RunState(state="running"), events, [], is_all=True))
    write_table(((RUN, point) for point in curve(events)), io.StringIO())


@settings(ANY_NUMBER_OF_TIMES, max_examples=15)
@given(st.lists(EVENT, max_size=8))
@example([{"version": 1, "kind": "metric", "time": 1.0, "step": s, "values": {"loss": v}} for s, v in ((-(2**53), 1e308), (2**53, -1e308))])  # fmt: skip
def test_any_curve_is_drawn(tmp_path, told):
    """Numbers whose difference is none are marked, and no part of a picture stays behind."""
    local_copy = LocalCopy(RUN, tmp_path)
    (local_copy.folder / "0001").mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{json.dumps(one)}\n" for one in told)
    (local_copy.folder / "0001" / "events.jsonl").write_text(lines)
    finish(local_copy, RunState(state="succeeded"), PlainView())
    losses = [point for point in curve(local_copy.record.events()) if (point.name, point.rank) == ("loss", 0)]
    assert local_copy.picture.exists() >= bool(losses)
    assert not list(local_copy.folder.glob("*.part"))
