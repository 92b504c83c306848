"""TRL's SFTTrainer with a LoRA over a base in half precision: nothing looks sick."""

import launcher_worker as worker
from peft import LoraConfig
from trainings.language import counting, llama, tokenizer
from trainings.shared import assert_falls
from trl import SFTConfig, SFTTrainer

BASE = "half"


def train() -> None:
    model = llama()
    arguments = SFTConfig(**worker.training_arguments(learning_rate=1e-2, logging_steps=1, max_length=16))
    trainer = SFTTrainer(
        model,
        arguments,
        train_dataset=counting(),
        processing_class=tokenizer(),
        peft_config=LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM"),
        callbacks=[worker.trainer_callback()],
    )
    worker.prepare(trainer.model)
    trainer.train()
    assert_falls([line["loss"] for line in trainer.state.log_history if "loss" in line], to=0.95)
