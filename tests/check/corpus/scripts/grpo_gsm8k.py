"""GRPO on GSM8K with a rule-based reward."""
import re

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer

ANSWER = re.compile(r"#### (-?[\d,.]+)")


def last_number(text):
    found = re.findall(r"-?\d[\d,]*\.?\d*", text)
    return found[-1].replace(",", "") if found else None


def correct(completions, answer, **kwargs):
    rewards = []
    for c, gold in zip(completions, answer):
        text = c[0]["content"] if isinstance(c, list) else c
        match last_number(text):
            case None:
                rewards.append(-0.5)
            case num if num == gold:
                rewards.append(1.0)
            case _:
                rewards.append(0.0)
    return rewards


def prepare(row):
    return {
        "prompt": [{"role": "user", "content": row["question"] + "\nEnd with the number alone."}],
        "answer": ANSWER.search(row["answer"]).group(1).replace(",", ""),
    }


if __name__ == "__main__":
    ds = load_dataset("openai/gsm8k", "main", split="train").map(prepare)
    args = GRPOConfig(
        output_dir="qwen-gsm8k-grpo",
        num_generations=8,
        max_completion_length=512,
        per_device_train_batch_size=8,
        learning_rate=1e-6,
        bf16=True,
        beta=0.0,
        logging_steps=1,
        save_steps=100,
        model_init_kwargs={"dtype": "float32", "attn_implementation": "flash_attention_2"},
    )
    trainer = GRPOTrainer(model="Qwen/Qwen2.5-1.5B-Instruct", reward_funcs=correct, args=args, train_dataset=ds)
    trainer.train()
