"""DPO stage, started with torchrun; the models are built in models.py."""
from datasets import load_dataset
from trl import DPOConfig, DPOTrainer

from models import build_policy, build_tokenizer

BASE = "alignment-handbook/zephyr-7b-sft-full"


def main():
    tokenizer = build_tokenizer(BASE)
    policy = build_policy(BASE)
    pairs = load_dataset("argilla/ultrafeedback-binarized-preferences-cleaned", split="train")
    trainer = DPOTrainer(
        policy,
        args=DPOConfig(output_dir="zephyr-dpo", beta=0.01, bf16=True, learning_rate=5e-7, max_length=1024),
        train_dataset=pairs,
        tokenizer=tokenizer,
    )
    trainer.train()
    trainer.save_model()


if __name__ == "__main__":
    main()
