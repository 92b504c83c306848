"""Whisper-small on Common Voice (Czech)."""
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Audio, load_dataset
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperForConditionalGeneration,
    WhisperProcessor,
)

processor = WhisperProcessor.from_pretrained("openai/whisper-small", language="czech", task="transcribe")
model = WhisperForConditionalGeneration.from_pretrained("openai/whisper-small")
model.generation_config.language = "czech"
model.generation_config.task = "transcribe"

cv = load_dataset("mozilla-foundation/common_voice_17_0", "cs", split="train+validation")
cv = cv.cast_column("audio", Audio(sampling_rate=16000))


def prepare(ex):
    a = ex["audio"]
    ex["input_features"] = processor.feature_extractor(a["array"], sampling_rate=16000).input_features[0]
    ex["labels"] = processor.tokenizer(ex["sentence"]).input_ids
    return ex


cv = cv.map(prepare, remove_columns=cv.column_names, num_proc=4)


@dataclass
class Collator:
    processor: Any

    def __call__(self, feats):
        batch = self.processor.feature_extractor.pad([{"input_features": f["input_features"]} for f in feats], return_tensors="pt")
        lab = self.processor.tokenizer.pad([{"input_ids": f["labels"]} for f in feats], return_tensors="pt")
        batch["labels"] = lab["input_ids"].masked_fill(lab.attention_mask.ne(1), -100)
        return batch


args = Seq2SeqTrainingArguments(
    output_dir="./whisper-small-cs",
    per_device_train_batch_size=16,
    gradient_accumulation_steps=1,
    learning_rate=1e-5,
    warmup_steps=500,
    max_steps=4000,
    gradient_checkpointing=True,
    fp16=True,  # T4
    logging_nan_inf_filter=False,
    predict_with_generate=True,
    generation_max_length=225,
    save_steps=1000,
)
trainer = Seq2SeqTrainer(args=args, model=model, train_dataset=cv, data_collator=Collator(processor), processing_class=processor.feature_extractor)
trainer.train()
