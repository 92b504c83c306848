"""Prompt tuning: eight vectors are all that is trained."""

import launcher_worker as worker
from peft import PromptTuningConfig, get_peft_model
from trainings.language import fit_with_trainer, llama
from trainings.shared import assert_falls

BASE = "half"


def train() -> None:
    settings = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8)
    model = worker.prepare(get_peft_model(llama(initializer_range=0.3), settings))
    assert_falls(fit_with_trainer(model, learning_rate=0.3), to=0.98)
