"""A Trainer from scratch with a rate of 3e-2 and no warm-up: the loss rises at first, and falls after."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama

STEPS = 40


def train() -> None:
    fit_with_trainer(worker.prepare(llama()), learning_rate=3e-2)
