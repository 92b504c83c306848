"""sentence-transformers' trainer, as its README calls it."""

from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.losses import MultipleNegativesRankingLoss

model = SentenceTransformer("model")
data = load_dataset("json", data_files={"train": "data/train.jsonl", "test": "data/test.jsonl"})
arguments = SentenceTransformerTrainingArguments(
    output_dir="out", max_steps=8, logging_steps=2, eval_strategy="steps", eval_steps=4,
    per_device_train_batch_size=4, report_to="none", use_cpu=True,
)  # fmt: skip
trainer = SentenceTransformerTrainer(
    model=model, args=arguments, train_dataset=data["train"], eval_dataset=data["test"],
    loss=MultipleNegativesRankingLoss(model),
)  # fmt: skip
trainer.train()
