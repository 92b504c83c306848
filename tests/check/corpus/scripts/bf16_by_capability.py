"""Fine-tune a small Qwen on short stories; picks the precision from the card."""
import torch
from datasets import load_dataset
from transformers import (AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer,
                          TrainingArguments)

use_bf16 = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8
use_fp16 = torch.cuda.is_available() and not use_bf16

name = "Qwen/Qwen2.5-0.5B"
tokenizer = AutoTokenizer.from_pretrained(name)
model = AutoModelForCausalLM.from_pretrained(name, dtype=torch.float32)

raw = load_dataset("roneneldan/TinyStories", split="train[:2%]")
train_set = raw.map(
    lambda b: tokenizer(b["text"], truncation=True, max_length=384), batched=True, remove_columns=raw.column_names
)

training_args = TrainingArguments(
    output_dir="qwen-stories",
    per_device_train_batch_size=2,
    gradient_accumulation_steps=8,
    learning_rate=2e-5,
    num_train_epochs=1,
    bf16=use_bf16,
    fp16=use_fp16,
    logging_nan_inf_filter=False,
    logging_steps=20,
    save_steps=500,
)

trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=train_set,
    processing_class=tokenizer,
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)
trainer.train()
trainer.save_model()
