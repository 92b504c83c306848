"""Fine-tune MiniLM on tickets, on a MacBook."""
import torch
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

assert torch.backends.mps.is_available(), "meant for Apple silicon"
checkpoint = "microsoft/MiniLM-L12-H384-uncased"
tok = AutoTokenizer.from_pretrained(checkpoint)
model = AutoModelForSequenceClassification.from_pretrained(checkpoint, num_labels=12).to("mps")

tickets = load_dataset("csv", data_files={"train": "tickets.csv", "test": "tickets_test.csv"})
tickets = tickets.map(
    lambda b: tok(b["body"], truncation=True, padding="max_length", max_length=200),
    batched=True,
)
args = TrainingArguments(
    output_dir="tickets",
    per_device_train_batch_size=16,
    eval_strategy="epoch",
    save_strategy="epoch",
    save_total_limit=2,
    load_best_model_at_end=True,
    dataloader_pin_memory=False,
    num_train_epochs=4,
)
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=tickets["train"],
    eval_dataset=tickets["test"],
    processing_class=tok,
)
trainer.train()
print(trainer.evaluate())
