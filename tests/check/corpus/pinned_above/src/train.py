"""Tell accents apart; the versions are pinned in the folder above."""

from transformers import AutoModelForAudioClassification, Trainer, TrainingArguments

from clips import extractor, heard, unheard

model = AutoModelForAudioClassification.from_pretrained("facebook/wav2vec2-base", num_labels=6)
arguments = TrainingArguments("accents", evaluation_strategy="steps", warmup_ratio=0.1, logging_dir="accents/logs")
trainer = Trainer(model=model, args=arguments, train_dataset=heard, eval_dataset=unheard, tokenizer=extractor)
trainer.train()
