"""Pure functions from values to values: nothing here reads a file, a clock or a host."""

from launcher.planning.gate import check, distribution
from launcher.planning.ladder import Mode, ladder
from launcher.planning.placement import best_card, choose_gpus, match_profile, why_taken
from launcher.planning.plan import plan
from launcher.planning.split import split

__all__ = [
    "Mode",
    "best_card",
    "check",
    "choose_gpus",
    "distribution",
    "ladder",
    "match_profile",
    "plan",
    "split",
    "why_taken",
]
