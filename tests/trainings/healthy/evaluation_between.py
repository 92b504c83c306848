"""A Trainer that evaluates every five steps, with dropout off and on again."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama
from trainings.shared import assert_falls


def train() -> None:
    model = worker.prepare(llama(attention_dropout=0.1))
    assert_falls(fit_with_trainer(model, eval_strategy="steps", eval_steps=5))
