"""The guard over many kinds of training: it ends no healthy one, and each broken one for its true reason and in time.

CI runs some of the cases; `make trainings` runs all of them, and writes TRAININGS.md.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from trainings.harness import Outcome, names

pytestmark = pytest.mark.training

HARNESS = Path(__file__).with_name("harness.py")
IN_CI = {
    "plain torch": [
        "broken/base_is_overwritten",
        "broken/dropout_of_one",
        "broken/forgotten_step",
        "broken/frozen_again",
        "broken/gradient_ascent",
        "broken/gradient_of_a_root_at_zero",
        "broken/momentum_of_one",
        "broken/nan_loss",
        "broken/optimizer_made_anew_over_a_copy",
        "broken/optimizer_of_another_model",
        "broken/overflow_in_half",
        "broken/rate_falls_below_zero",
        "broken/rate_of_a_thousand_in_a_loop",
        "broken/rate_of_a_trillionth_in_a_loop",
        "broken/weight_decay_explodes",
        "broken/zero_grad_forgotten",
        "healthy/byol",
        "healthy/converges_to_rounding",
        "healthy/curriculum_jumps",
        "healthy/dqn_target_network",
        "healthy/ema_teacher",
        "healthy/entropy_before_the_first_reward",
        "healthy/factors_near_zero",
        "healthy/freeze_then_thaw",
        "healthy/gan",
        "healthy/gradients_left_by_the_critic",
        "healthy/gradients_zeroed_in_place",
        "healthy/hinge_reaches_zero",
        "healthy/lbfgs",
        "healthy/lucky_first_batch",
        "healthy/padded_batches",
        "healthy/rate_of_zero_at_the_end",
        "healthy/reinforce_zero_rewards",
        "healthy/sparse_embedding",
        "healthy/unfreezing_by_layer",
        "healthy/value_of_a_first_reward",
        "healthy/warm_up_from_zero",
    ],
    "transformers, peft and TRL": [
        "broken/rate_of_one",
        "healthy/grpo_sparse_rewards",
        "healthy/lora_modules_to_save",
    ],
}


@pytest.mark.parametrize("group", IN_CI)
def test_the_guard_judges_trainings_truly_and_in_time(group):
    """A healthy training is not ended; a broken one is, by its true class, within five steps of the harm."""
    if importlib.util.find_spec("trl") is None:  # looked for, not imported
        pytest.skip("the training libraries are not installed")
    done = subprocess.run(
        [sys.executable, HARNESS, "--json", *IN_CI[group]],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    judged = [(Outcome(*outcome), mistake) for outcome, mistake in map(json.loads, done.stdout.splitlines())]
    assert {outcome.case for outcome, _ in judged} == set(IN_CI[group]), done.stderr
    assert not [mistake for _, mistake in judged if mistake]


def test_what_ci_runs_are_cases():
    """No case of the lists above was renamed."""
    assert {name for group in IN_CI.values() for name in group} <= {*names("healthy"), *names("broken")}
