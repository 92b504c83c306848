"""A plain Trainer: warm-up, cosine, weight decay, accumulation of two, and Adafactor, whose updates have no fixed size."""

import launcher_worker as worker
from trainings.language import fit_with_trainer, llama
from trainings.shared import assert_falls


def train() -> None:
    model = worker.prepare(llama())
    own = {
        "optim": "adafactor",
        "lr_scheduler_type": "cosine",
        "warmup_steps": 5,
        "weight_decay": 0.1,
        "gradient_accumulation_steps": 2,
        "per_device_train_batch_size": 4,
    }
    assert_falls(fit_with_trainer(model, **own))
