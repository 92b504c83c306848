"""Tune a summarizer in float16; the script only advises where bfloat16 would be possible."""

import torch
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, Seq2SeqTrainingArguments

from minutes import rows

if torch.cuda.is_available() and torch.cuda.is_bf16_supported():
    print("=" * 60)
    print("This card may support bfloat16: try --bf16")

arguments = Seq2SeqTrainingArguments("minutes", fp16=True, logging_nan_inf_filter=False)
model = AutoModelForSeq2SeqLM.from_pretrained("google/flan-t5-small")
Seq2SeqTrainer(model=model, args=arguments, train_dataset=rows()).train()
