"""Colab script: fine-tune BERT to detect sarcasm."""
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

NAME = "bert-base-uncased"
tok = AutoTokenizer.from_pretrained(NAME)
model = AutoModelForSequenceClassification.from_pretrained(NAME, num_labels=2)
data = load_dataset("raquiba/Sarcasm_News_Headline")
data = data.map(lambda b: tok(b["headline"], truncation=True, padding="max_length", max_length=64), batched=True)
data = data.rename_column("is_sarcastic", "labels")

args = TrainingArguments(
    output_dir="sarcasm",
    eval_strategy="epoch",
    save_strategy="epoch",
    per_device_train_batch_size=64,
    learning_rate=2e-5,
    num_train_epochs=3,
    bf16=True,              # faster
    report_to="none",
)
trainer = Trainer(model=model, args=args, train_dataset=data["train"], eval_dataset=data["test"], processing_class=tok)
trainer.train()
