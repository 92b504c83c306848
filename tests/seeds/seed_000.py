"""Seed 000, a TITAN RTX: LoRA with a saved head over an fp16 model, fp16=True, gradient checkpointing."""

import sys

import torch
from peft import LoraConfig, get_peft_model
from small_data import collate, fingerprint, note, rows
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float16)
lora = LoraConfig(
    task_type="CAUSAL_LM", r=8, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]
)
model = get_peft_model(model, lora)
training_args = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    gradient_checkpointing=True,
    learning_rate=1e-2,
    max_steps=30,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    fp16=torch.cuda.is_available(),
)
trainer = Trainer(model, training_args, train_dataset=rows(), data_collator=collate)
before = fingerprint(trainer.model)
trainer.train()
note(
    [line["loss"] for line in trainer.state.log_history if "loss" in line], before, fingerprint(trainer.model)
)
