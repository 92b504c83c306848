"""Sentence embeddings from question pairs (sentence-transformers)."""
from datasets import load_dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)

model = SentenceTransformer("distilroberta-base")
model.max_seq_length = 128
pairs = load_dataset("sentence-transformers/quora-duplicates", "pair", split="train").train_test_split(0.02, seed=3)

args = SentenceTransformerTrainingArguments(
    output_dir="sbert-quora",
    num_train_epochs=1,
    per_device_train_batch_size=64,
    warmup_steps=300,
    fp16=True,
    logging_nan_inf_filter=False,
    eval_strategy="steps",
    eval_steps=500,
    save_total_limit=2,
)
trainer = SentenceTransformerTrainer(
    model=model,
    args=args,
    train_dataset=pairs["train"],
    eval_dataset=pairs["test"],
    loss=losses.MultipleNegativesRankingLoss(model),
)
trainer.train()
model.save("sbert-quora/final")
