"""AdamW with a learning rate of 1.0 over a language model: its loss rises fourfold, and stays there."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama

ENDS_AS = "nan-divergence"
HARM_AT = 1


def train() -> None:
    fit_with_trainer(worker.prepare(llama(vocab_size=400)), learning_rate=1.0)
