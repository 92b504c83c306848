"""Pure functions from values to values: nothing here reads a file, a clock or a host."""

from launcher.planning.assembly import case_of, changed, job_of, plan, source
from launcher.planning.build_failure import build_failure
from launcher.planning.environment_plan import (
    environment,
    environment_files,
    environment_settings,
    has_no_index,
    maker_of,
)
from launcher.planning.gate import check, distribution
from launcher.planning.image_plan import Sources, context, image, torch_for
from launcher.planning.ladder import Asked, Case, Excluded, Ladder, ladder
from launcher.planning.placement import (
    best_card,
    cards_of,
    choose_gpus,
    engine,
    gpus_meant,
    is_closed,
    is_taken,
    match_profile,
    processes_named,
    runtime,
    strangers_on,
    who_holds,
    whom_to_ask,
    why_taken,
)
from launcher.planning.recipe import Recipe, buildkit, classic
from launcher.planning.split import split
from launcher.planning.wheel_choice import Choice, Place, Site, choose, meant, objection, site, unfit

__all__ = [
    "Asked",
    "Case",
    "Choice",
    "Excluded",
    "Ladder",
    "Place",
    "Recipe",
    "Site",
    "Sources",
    "best_card",
    "build_failure",
    "buildkit",
    "cards_of",
    "case_of",
    "changed",
    "check",
    "choose",
    "choose_gpus",
    "classic",
    "context",
    "distribution",
    "engine",
    "environment",
    "environment_files",
    "environment_settings",
    "gpus_meant",
    "has_no_index",
    "image",
    "is_closed",
    "is_taken",
    "job_of",
    "ladder",
    "maker_of",
    "match_profile",
    "meant",
    "objection",
    "plan",
    "processes_named",
    "runtime",
    "site",
    "source",
    "split",
    "strangers_on",
    "torch_for",
    "unfit",
    "who_holds",
    "whom_to_ask",
    "why_taken",
]
