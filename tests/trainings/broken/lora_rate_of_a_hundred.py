"""A LoRA with a learning rate of 100, by a Trainer."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama, lora

ENDS_AS = "nan-divergence"
HARM_AT = 1
NOTICED_WITHIN = 7  # in bf16 the loss hardly changes, until every gradient is zero
BASE = "half"


def train() -> None:
    fit_with_trainer(worker.prepare(lora(llama())), learning_rate=100.0)
