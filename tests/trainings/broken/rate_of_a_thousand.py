"""AdamW with a learning rate of 1e3 over a language model: no weight is what it was after one step."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama

ENDS_AS = "nan-divergence"
HARM_AT = 1
NOTICED_WITHIN = 7  # in fp32 the loss hardly changes, until every gradient is zero


def train() -> None:
    fit_with_trainer(worker.prepare(llama()), learning_rate=1e3)
