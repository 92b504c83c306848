"""Two-stage training: short texts first, then long ones."""
import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments

NAME = "EleutherAI/pythia-410m"
tok = AutoTokenizer.from_pretrained(NAME)
tok.pad_token = tok.eos_token
news = load_dataset("cc_news", split="train[:3%]")


def encoded(limit):
    return news.map(lambda b: tok(b["text"], truncation=True, max_length=limit), batched=True,
                    remove_columns=news.column_names)


model = AutoModelForCausalLM.from_pretrained(NAME, dtype=torch.float32)
trainer = Trainer(
    model=model,
    args=TrainingArguments("two-stage", max_steps=2000, per_device_train_batch_size=2, save_steps=1000, bf16=True),
    train_dataset=encoded(256),
    data_collator=DataCollatorForLanguageModeling(tok, mlm=False),
)
trainer.train()

model.bfloat16()  # room for the long texts
trainer.train_dataset = encoded(2048)
trainer.args.max_steps = 3000
trainer.train()
trainer.save_model("two-stage/final")
