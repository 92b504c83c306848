"""Full fine-tune of a 3B model on meeting minutes."""
import torch
from datasets import load_dataset
from transformers import (AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer,
                          TrainingArguments)

model_id = "Qwen/Qwen2.5-3B"
tokenizer = AutoTokenizer.from_pretrained(model_id, use_fast=True)
model = AutoModelForCausalLM.from_pretrained(
    model_id,
    dtype=torch.bfloat16,
    device_map="auto",
    attn_implementation="sdpa",
)
model.config.use_cache = False

minutes = load_dataset("json", data_files={"train": "minutes.jsonl"})["train"]
minutes = minutes.map(lambda r: tokenizer(r["minutes"], truncation=True, max_length=2048),
                      remove_columns=minutes.column_names)

trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="qwen-minutes",
        bf16=True,
        per_device_train_batch_size=1,
        gradient_accumulation_steps=16,
        gradient_checkpointing=True,
        optim="adafactor",
        num_train_epochs=2,
    ),
    train_dataset=minutes,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
trainer.save_model()
