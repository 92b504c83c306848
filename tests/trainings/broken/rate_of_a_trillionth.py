"""A LoRA with a learning rate of 1e-12: only B moves, because it begins at zero, and no output changes by it."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama, lora

BASE = "half"
ENDS_AS = "not-learning"
HARM_AT = 1
NOTICED_WITHIN = 20  # the first steps of a long warm-up move as little


def train() -> None:
    fit_with_trainer(worker.prepare(lora(llama())), learning_rate=1e-12)
