"""A Trainer's rate is zero from the first step on: a factor of the schedule was rounded down to an integer."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama

ENDS_AS = "not-learning"
HARM_AT = 1
NOTICED_WITHIN = 20  # a warm-up may begin with some steps at zero


def train() -> None:
    fit_with_trainer(worker.prepare(llama()), learning_rate=1e-2 * (3 // 4))
