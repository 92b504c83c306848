"""ELECTRA on a multilingual spam corpus."""
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments


def training_args(out, lr=3e-5, bs=32):
    return TrainingArguments(
        output_dir=out,
        learning_rate=lr,
        per_device_train_batch_size=bs,
        tf32=True,
        eval_strategy="epoch",
        save_strategy="epoch",
        num_train_epochs=3,
    )


tok = AutoTokenizer.from_pretrained("google/electra-base-discriminator")
model = AutoModelForSequenceClassification.from_pretrained("google/electra-base-discriminator", num_labels=2)
spam = load_dataset("sms_spam", split="train").train_test_split(0.2, seed=11)
spam = spam.map(lambda b: tok(b["sms"], truncation=True, padding="max_length", max_length=100), batched=True)
spam = spam.rename_column("label", "labels")
trainer = Trainer(model=model, args=training_args("electra-spam"), train_dataset=spam["train"], eval_dataset=spam["test"])
trainer.train()
print(trainer.evaluate())
