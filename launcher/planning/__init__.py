"""Pure functions from values to values: nothing here reads a file, a clock or a host."""

from launcher.planning.allocation import complete
from launcher.planning.apptainer import host_paths
from launcher.planning.assembly import changed, job_of, ladder_inputs, plan, source
from launcher.planning.build_failure import Indexes, build_failure, indexes
from launcher.planning.environment_plan import (
    build_variables,
    environment,
    environment_files,
    has_no_index,
    maker_of,
)
from launcher.planning.gate import check, distribution
from launcher.planning.image_plan import Sources, context, image, torch_for
from launcher.planning.kaggle_gate import no_secrets
from launcher.planning.kaggle_machines import MachineChoice, choose_machine, expected_facts, planned_machine
from launcher.planning.kaggle_session import session
from launcher.planning.ladder import Excluded, Ladder, LadderInputs, PrecisionRequest, ladder
from launcher.planning.placement import (
    best_card,
    card_choice_reason,
    cards_of,
    choose_gpus,
    describe_holders,
    engine,
    is_closed,
    is_unavailable,
    match_profile,
    own_runtime,
    release_advice,
    requested_gpus,
    requested_processes,
    runtime,
    strangers_on,
)
from launcher.planning.precision_history import failed_before
from launcher.planning.recipe import Recipe, buildkit, classic
from launcher.planning.script import interpreter_of, leading_assignments, script_of, starts_python
from launcher.planning.slurm_gate import limit_findings
from launcher.planning.slurm_job import (
    possible_profiles,
    submission,
    with_expected_cards,
    with_others,
)
from launcher.planning.slurm_job import settings_of as slurm_settings_of
from launcher.planning.split import split
from launcher.planning.verification import verification
from launcher.planning.wheel_choice import (
    Site,
    TorchChoice,
    TorchTarget,
    choose,
    objection,
    site,
    unfit,
    unimported_torch,
    verifiable_torch,
)
from launcher.planning.worker_use import python_tree, values_taken

__all__ = [
    "Excluded",
    "Indexes",
    "Ladder",
    "LadderInputs",
    "MachineChoice",
    "PrecisionRequest",
    "Recipe",
    "Site",
    "Sources",
    "TorchChoice",
    "TorchTarget",
    "best_card",
    "build_failure",
    "build_variables",
    "buildkit",
    "card_choice_reason",
    "cards_of",
    "changed",
    "check",
    "choose",
    "choose_gpus",
    "choose_machine",
    "classic",
    "complete",
    "context",
    "describe_holders",
    "distribution",
    "engine",
    "environment",
    "environment_files",
    "expected_facts",
    "failed_before",
    "has_no_index",
    "host_paths",
    "image",
    "indexes",
    "interpreter_of",
    "is_closed",
    "is_unavailable",
    "job_of",
    "ladder",
    "ladder_inputs",
    "leading_assignments",
    "limit_findings",
    "maker_of",
    "match_profile",
    "no_secrets",
    "objection",
    "own_runtime",
    "plan",
    "planned_machine",
    "possible_profiles",
    "python_tree",
    "release_advice",
    "requested_gpus",
    "requested_processes",
    "runtime",
    "script_of",
    "session",
    "site",
    "slurm_settings_of",
    "source",
    "split",
    "starts_python",
    "strangers_on",
    "submission",
    "torch_for",
    "unfit",
    "unimported_torch",
    "values_taken",
    "verifiable_torch",
    "verification",
    "with_expected_cards",
    "with_others",
]
