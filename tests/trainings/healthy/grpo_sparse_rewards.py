"""TRL's GRPO with rewards that are equal in most groups: advantages, loss and all gradients of those steps are zero."""

from typing import Any

import launcher_worker as worker
from datasets import Dataset
from trainings.language import llama, tokenizer
from trl import GRPOConfig, GRPOTrainer

STEPS = 12
REWARDED_FROM = 6  # steps without any reward before


def train() -> None:
    calls = []

    def reward(completion_ids: list[list[int]], **_other: Any) -> list[float]:
        calls.append(1)
        is_earned = len(calls) >= REWARDED_FROM
        return [float(is_earned and place % 4 == 0) for place, _ in enumerate(completion_ids)]

    arguments = worker.training_arguments(
        learning_rate=1e-3,
        logging_steps=1,
        num_generations=4,
        max_completion_length=8,
        temperature=1.0,
    )
    trainer = GRPOTrainer(
        worker.prepare(llama()),
        reward,
        GRPOConfig(**arguments),
        train_dataset=Dataset.from_dict({"prompt": [f"{start} {start + 1}" for start in range(30)]}),
        processing_class=tokenizer(),
        callbacks=[worker.trainer_callback()],
    )
    trainer.train()
    stds = [line["reward_std"] for line in trainer.state.log_history if "reward_std" in line]
    assert stds[: REWARDED_FROM - 1] == [0.0] * (REWARDED_FROM - 1)
    assert stds[-1] > 0
