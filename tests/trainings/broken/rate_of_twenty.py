"""SGD with momentum and a rate of 20 over a tiny language model."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama

ENDS_AS = "nan-divergence"
HARM_AT = 1


def train() -> None:
    fit_with_trainer(
        worker.prepare(llama()), learning_rate=20.0, optim="sgd", optim_args="momentum=0.9", max_grad_norm=0.0
    )
