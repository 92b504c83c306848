"""Rank answers with a Trainer from another file."""

from transformers import AutoModelForSequenceClassification, TrainingArguments

from pairs import collate, pairs
from ranking import RankingTrainer

model = AutoModelForSequenceClassification.from_pretrained("roberta-base", num_labels=1, device_map="auto")
arguments = TrainingArguments("ranker", bf16=True, remove_unused_columns=False)
trainer = RankingTrainer(model=model, args=arguments, train_dataset=pairs("train"), data_collator=collate)
trainer.train()
