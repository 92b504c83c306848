"""Measure the perplexity of a tuned model with a Trainer that never trains."""

import math

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, DataCollatorForLanguageModeling, Trainer, TrainingArguments

from poems import held_out, tokenizer

base = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", dtype=torch.float16, device_map="auto")
judge = Trainer(
    model=PeftModel.from_pretrained(base, "poems/adapters"),
    args=TrainingArguments("scores", per_device_eval_batch_size=4, save_strategy="no", fp16_full_eval=True, fp16=True),
    eval_dataset=held_out(),
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
print(math.exp(judge.evaluate()["eval_loss"]))
