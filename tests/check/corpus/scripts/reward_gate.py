"""Reward model on Anthropic's helpful/harmless pairs."""
import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from trl import RewardConfig, RewardTrainer


def pick_dtype():
    if torch.cuda.is_available() and torch.cuda.is_bf16_supported():
        return torch.bfloat16
    return torch.float32


dtype = pick_dtype()
name = "Qwen/Qwen2.5-0.5B-Instruct"
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=1, dtype=dtype)
model.config.pad_token_id = tokenizer.pad_token_id

hh = load_dataset("trl-lib/hh-rlhf-helpful-base")
trainer = RewardTrainer(
    model=model,
    args=RewardConfig(output_dir="rm-hh", per_device_train_batch_size=4, max_length=768, bf16=False, fp16=False,
                      eval_strategy="steps", eval_steps=400, save_steps=400),
    train_dataset=hh["train"],
    eval_dataset=hh["test"],
    processing_class=tokenizer,
)
trainer.train()
