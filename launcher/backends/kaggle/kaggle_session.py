"""The plan of a run's sessions at Kaggle: the machine, plans for other possible cards, and torch for each."""

from __future__ import annotations

from collections.abc import Sequence

from launcher.backends.kaggle.kaggle_kernel import NO_ACCELERATOR
from launcher.backends.kaggle.kaggle_machines import IMAGE
from launcher.backends.spool.segment_settings import SegmentSettings, SegmentTree
from launcher.errors import RefusedError
from launcher.planning.placement import possible_cards
from launcher.planning.software.image_plan import torch_for
from launcher.planning.software.wheel_choice import CPU, UNKNOWN
from launcher.planning.software.wheels import WheelTable
from launcher.values.plan import CardPlan, MachineChoice, Plan, SegmentCards, Session, TorchWheel
from launcher.values.precision import numbers
from launcher.values.profile import Profile


def session(
    choice: MachineChoice, others: Sequence[Plan], requirements: Sequence[str], wheels: WheelTable
) -> Session:
    """Return the sessions of a run. `others` are the plans for all profiles of the choice but the first."""
    cards = choice.profiles if choice.machine != NO_ACCELERATOR else ()
    torch = (_wheel(profile, python, requirements, wheels) for profile in cards for python in IMAGE.pythons)
    return Session(
        machine=choice.machine,
        others=tuple(
            CardPlan(**{key: getattr(plan, key) for key in CardPlan.model_fields}) for plan in others
        ),
        torch=tuple(wheel for wheel in torch if wheel is not None),
    )


def _wheel(
    profile: Profile, python: str, requirements: Sequence[str], wheels: WheelTable
) -> TorchWheel | None:
    """Return the torch build for a card and a Python; None if the table has none for the job's version."""
    major, minor = numbers(python)[:2]
    try:
        chosen = torch_for(requirements, UNKNOWN.with_card(profile, (major, minor)), wheels)
    except RefusedError:
        return None
    if profile.capability is None or chosen.url is None or chosen.build in (None, CPU):
        return None
    return TorchWheel(
        capability=profile.capability,
        requirement=f"torch=={chosen.torch}+{chosen.build}",
        index=chosen.url,
        python=python,
    )


def segment_cards(plan: Plan) -> tuple[SegmentCards, ...]:
    """Return the cards possible in a segment of a plan; empty for a plan without cards."""
    if plan.rehearsed or plan.profile.kind != "cuda":
        return ()
    others = plan.session.others if plan.session is not None else ()
    return (possible_cards(plan.profile), *(possible_cards(other.profile, other) for other in others))


def segment_settings(
    plan: Plan,
    *,
    run: str,
    place: str,
    internet: bool,
    session_s: float,
    segment: int = 1,
    tree: SegmentTree | None = None,
    has_earlier: bool = False,
) -> SegmentSettings:
    """Return the settings of a plan's segment.

    `has_earlier`: the segment continues from the outputs of an earlier one.
    """
    return SegmentSettings(
        run=run,
        segment=segment,
        session_s=session_s,
        place_id=place,
        internet=internet,
        tree=tree,
        earlier=has_earlier,
        cards=segment_cards(plan),
        requirements=plan.requirements,
        torch=plan.session.torch if plan.session is not None else (),
    )
