"""TRL's DPO with a LoRA: the loss begins at the logarithm of two, and the reference is the base without the adapter."""

import launcher_worker as worker
from datasets import Dataset
from trainings.language import llama, logged_losses, lora, tokenizer
from trainings.shared import assert_falls
from trl import DPOConfig, DPOTrainer

BASE = "half"


def train() -> None:
    rows = {
        "prompt": [f"{start}" for start in range(30)],
        "chosen": [f" {start + 1} {start + 2}" for start in range(30)],
        "rejected": [f" {start + 7} {start}" for start in range(30)],
    }
    model = worker.prepare(lora(llama()))
    arguments = worker.training_arguments(learning_rate=2e-2, logging_steps=1, beta=0.5)
    trainer = DPOTrainer(
        model,
        args=DPOConfig(**arguments),
        train_dataset=Dataset.from_dict(rows),
        processing_class=tokenizer(),
        callbacks=[worker.trainer_callback()],
    )
    trainer.train()
    assert_falls(logged_losses(trainer))
