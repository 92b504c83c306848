"""A LoRA with a head that is trained whole, over a base in half precision."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama, lora
from trainings.shared import assert_falls

BASE = "half"


def train() -> None:
    targets = ["q_proj", "v_proj"]
    model = worker.prepare(lora(llama(), target_modules=targets, modules_to_save=["lm_head"]))
    assert_falls(fit_with_trainer(model))
