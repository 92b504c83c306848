"""Seed 001, a rented card: every weight of an fp16 model is trained with fp16=True, under device_map="auto".

With the word `mended` it is the report's own mend: bf16 where torch says that the card has it, else half weights and no
scaler.
"""

import sys

import torch
from small_data import collate, fingerprint, note, rows
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

is_mended = "mended" in sys.argv
has_bf16 = is_mended and "bf16" in sys.argv and torch.cuda.is_available() and torch.cuda.is_bf16_supported()
torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(
    sys.argv[1],
    dtype=torch.bfloat16 if has_bf16 else torch.float16,
    device_map="auto",
)
training_args = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    learning_rate=3e-3,
    max_steps=30,
    logging_steps=1,
    logging_nan_inf_filter=False,
    save_strategy="no",
    report_to="none",
    bf16=has_bf16,
    fp16=torch.cuda.is_available() and not is_mended,
)
trainer = Trainer(model, training_args, train_dataset=rows(), data_collator=collate)
before = fingerprint(trainer.model)
trainer.train()
note(
    [line["loss"] for line in trainer.state.log_history if "loss" in line], before, fingerprint(trainer.model)
)
