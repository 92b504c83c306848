"""TRL's GRPO with sparse rewards that logs every tenth step only: the guard hears of equal rewards late."""

from typing import Any

import launcher_worker as worker
from datasets import Dataset
from trainings.language import llama, tokenizer
from trl import GRPOConfig, GRPOTrainer

STEPS = 24


def train() -> None:
    calls = []

    def reward(completion_ids: list[list[int]], **_other: Any) -> list[float]:
        calls.append(1)
        return [float(len(calls) >= 15 and place % 4 == 0) for place, _ in enumerate(completion_ids)]

    arguments = worker.training_arguments(
        learning_rate=1e-3, logging_steps=10, num_generations=4, max_completion_length=8
    )
    arguments["logging_steps"] = 10
    trainer = GRPOTrainer(
        worker.prepare(llama()),
        reward,
        GRPOConfig(**arguments),
        train_dataset=Dataset.from_dict({"prompt": [f"{start} {start + 1}" for start in range(30)]}),
        processing_class=tokenizer(),
        callbacks=[worker.trainer_callback()],
    )
    trainer.train()
