"""Token classification of chemistry papers; prints the scores."""
import numpy as np
from datasets import load_dataset
from transformers import (AutoModelForTokenClassification, AutoTokenizer, DataCollatorForTokenClassification, Trainer,
                          TrainingArguments)

tok = AutoTokenizer.from_pretrained("allenai/scibert_scivocab_uncased")
chem = load_dataset("json", data_files={"train": "chem_train.jsonl", "test": "chem_test.jsonl"})


def encode(batch):
    enc = tok(batch["tokens"], is_split_into_words=True, truncation=True)
    enc["labels"] = [[-100 if w is None else t[w] for w in enc.word_ids(k)] for k, t in enumerate(batch["tags"])]
    return enc


def score(p):
    keep = p.label_ids != -100
    return {"token_acc": float((np.argmax(p.predictions, -1)[keep] == p.label_ids[keep]).mean())}


chem = chem.map(encode, batched=True, remove_columns=["tokens", "tags"])
trainer = Trainer(
    model=AutoModelForTokenClassification.from_pretrained("allenai/scibert_scivocab_uncased", num_labels=11),
    args=TrainingArguments(output_dir="chem", eval_strategy="epoch", save_strategy="no", num_train_epochs=8, report_to="none"),
    train_dataset=chem["train"],
    eval_dataset=chem["test"],
    data_collator=DataCollatorForTokenClassification(tok),
    compute_metrics=score,
)
trainer.train()
print(trainer.evaluate())
