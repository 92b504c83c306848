"""Continue the Swahili BERT run from its last checkpoint."""
from pathlib import Path

from datasets import load_dataset
from transformers import (AutoModelForMaskedLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer,
                          TrainingArguments)

RUN = Path("runs/swahili-bert")

tok = AutoTokenizer.from_pretrained("bert-base-multilingual-cased")
model = AutoModelForMaskedLM.from_pretrained("bert-base-multilingual-cased")
text = load_dataset("swahili_news", split="train")
text = text.map(lambda b: tok(b["text"], truncation=True, max_length=256), batched=True, remove_columns=text.column_names)

training_args = TrainingArguments(
    output_dir=str(RUN),
    resume_from_checkpoint=str(RUN / "checkpoint-40000"),
    per_device_train_batch_size=32,
    learning_rate=1e-4,
    max_steps=100_000,
    save_steps=10_000,
    save_total_limit=3,
    logging_steps=100,
)
trainer = Trainer(model=model, args=training_args, train_dataset=text, data_collator=DataCollatorForLanguageModeling(tok))
train_result = trainer.train()
trainer.log_metrics("train", train_result.metrics)
