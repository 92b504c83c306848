"""Random search over three settings of an XLM-R classifier, logged to a CSV."""
import csv
import random

from datasets import load_dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainingArguments

SEARCH = {
    "evaluation_strategy": ["holdout", "5-fold"],
    "no_cuda": [False],
    "lr": [1e-5, 2e-5, 5e-5],
    "bs": [16, 32],
}


def sample(space):
    return {k: random.choice(v) for k, v in space.items()}


tok = AutoTokenizer.from_pretrained("xlm-roberta-base")
ds = load_dataset("amazon_reviews_multi", "de")
ds = ds.map(lambda b: tok(b["review_body"], truncation=True, max_length=128), batched=True)
ds = ds.rename_column("stars", "labels")

with open("search.csv", "w", newline="") as fh:
    writer = csv.DictWriter(fh, fieldnames=[*SEARCH, "loss"])
    writer.writeheader()
    for trial in range(6):
        p = sample(SEARCH)
        model = AutoModelForSequenceClassification.from_pretrained("xlm-roberta-base", num_labels=6)
        args = TrainingArguments(
            output_dir=f"search/{trial}",
            eval_strategy="epoch",
            learning_rate=p["lr"],
            per_device_train_batch_size=p["bs"],
            num_train_epochs=1,
            report_to="none",
        )
        t = Trainer(model=model, args=args, train_dataset=ds["train"], eval_dataset=ds["validation"], processing_class=tok)
        t.train()
        writer.writerow({**p, "loss": t.evaluate()["eval_loss"]})
