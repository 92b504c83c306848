"""What a run asks for: how many cards of which kind, how it gets them, and on how many nodes."""

import json

import pytest
from pydantic import ValidationError
from testbed.client import REPOSITORY

from launcher.planning.allocation import complete
from launcher.values.plan import Plan

CASES = REPOSITORY / "tests" / "cases"


def recorded(case):
    return json.loads((CASES / case / "plan.json").read_text())


@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir()))
def test_the_plan_asks_for_a_number_and_a_kind_and_never_for_a_card(case):
    """CUDA cards are leased, as many as train, or given in a session of Kaggle's; a CPU or an Apple GPU is given."""
    plan = Plan.model_validate(recorded(case))
    is_cuda = plan.profile.kind == "cuda" and not plan.rehearsed
    assert plan.allocation.how == ("leased" if is_cuda and plan.session is None else "given")
    assert plan.allocation.cards == (plan.profile.count if is_cuda else 0)
    assert plan.allocation.kind == plan.profile.name
    assert [node.ranks for node in plan.nodes] == [plan.split.ranks]
    assert "GPU-" not in plan.to_json()


@pytest.mark.parametrize("case", sorted({path.name for path in CASES.iterdir()} - {"sft_on_kaggle"}))
def test_a_plan_without_nodes_and_allocation_is_read_as_the_one_that_would_be_made_today(case):
    """They were not recorded until 2026-11-22, when there were no sessions on Kaggle."""
    plan = recorded(case)
    older = {key: value for key, value in plan.items() if key not in ("nodes", "allocation")}
    assert Plan.model_validate(complete(older)) == Plan.model_validate(plan)
    assert complete(plan) == plan


@pytest.mark.parametrize("record", [{}, {"split": {}}, {"job": "x", "profile": {"name": "x"}}])
def test_what_is_not_a_plan_is_left_to_its_reader(record):
    """Nothing is made up."""
    assert complete(record) == record


def test_the_nodes_hold_all_ranks_of_the_split():
    """A plan whose nodes and split disagree cannot be built."""
    plan = recorded("sft_on_cpu")
    with pytest.raises(ValidationError, match="ranks of the nodes"):
        Plan.model_validate({**plan, "nodes": [{"ranks": 2}]})
