"""A Trainer with gradient checkpointing: each layer's forward pass happens twice a step."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama
from trainings.shared import assert_falls


def train() -> None:
    model = worker.prepare(llama())
    own = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    assert_falls(fit_with_trainer(model, **own))
