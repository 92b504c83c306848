"""Fine-tune GPT-2 medium on a book of poems."""
import torch
from datasets import load_dataset
from transformers import (AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer,
                          TrainingArguments)

tokenizer = AutoTokenizer.from_pretrained("gpt2-medium")
tokenizer.pad_token = tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained("gpt2-medium", torch_dtype=torch.float16)

ds = load_dataset("text", data_files={"train": "poems.txt"})["train"]
ds = ds.map(lambda b: tokenizer(b["text"], truncation=True, max_length=128), batched=True, remove_columns=["text"])

training_args = TrainingArguments(
    output_dir="gpt2-poems",
    num_train_epochs=5,
    per_device_train_batch_size=8,
    learning_rate=5e-5,
    fp16=True,
    save_total_limit=2,
)
trainer = Trainer(
    model=model,
    args=training_args,
    train_dataset=ds,
    data_collator=DataCollatorForLanguageModeling(tokenizer=tokenizer, mlm=False),
)
trainer.train()
trainer.save_model("gpt2-poems/final")
