"""Pure functions from values to values: nothing here reads a file, a clock or a host."""

from launcher.planning.gate import check, distribution
from launcher.planning.image import context, image, torch_wheels
from launcher.planning.ladder import Mode, ladder
from launcher.planning.placement import (
    best_card,
    choose_gpus,
    engine,
    is_closed,
    match_profile,
    runtime,
    why_taken,
)
from launcher.planning.plan import plan
from launcher.planning.recipe import Recipe, buildkit, classic
from launcher.planning.split import split

__all__ = [
    "Mode",
    "Recipe",
    "best_card",
    "buildkit",
    "check",
    "choose_gpus",
    "classic",
    "context",
    "distribution",
    "engine",
    "image",
    "is_closed",
    "ladder",
    "match_profile",
    "plan",
    "runtime",
    "split",
    "torch_wheels",
    "why_taken",
]
