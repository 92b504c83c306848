"""A quick MobileBERT fine-tune for a demo."""
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

name = "google/mobilebert-uncased"
tok = AutoTokenizer.from_pretrained(name)
model = AutoModelForSequenceClassification.from_pretrained(name, num_labels=6)
emo = load_dataset("dair-ai/emotion")
emo = emo.map(lambda b: tok(b["text"], truncation=True, padding="max_length", max_length=64), batched=True)

trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir="mobile-emotion",
        save_strategy="no",  # a short run, saved by hand below
        eval_strategy="epoch",
        num_train_epochs=2,
        per_device_train_batch_size=64,
    ),
    train_dataset=emo["train"],
    eval_dataset=emo["validation"],
    processing_class=tok,
)
trainer.train()
if (score := trainer.evaluate()["eval_loss"]) < 0.4:
    trainer.push_to_hub()
print("eval loss", score)
trainer.save_model("mobile-emotion/final")
