"""DoRA: the magnitude of each column is trained beside a LoRA."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama, lora
from trainings.shared import assert_falls

BASE = "half"


def train() -> None:
    assert_falls(fit_with_trainer(worker.prepare(lora(llama(), use_dora=True))), to=0.95)
