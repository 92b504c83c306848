"""Seed 003: an fp16 model under fp16=True. The gradient norm is nan, and Trainer prints the loss as 0.0.

The model was saved in bf16; its residuals do not fit into fp16.
"""

import torch
from peft import LoraConfig, get_peft_model
from small_data import collate, fingerprint, note, rows
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
model = AutoModelForCausalLM.from_pretrained(
    "model", dtype=torch.float16 if device == "cuda" else torch.float32
).to(device)
model = get_peft_model(
    model, LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=["q_proj", "v_proj", "lm_head"])
)
model.enable_input_require_grads()
training_args = TrainingArguments(
    "out",
    per_device_train_batch_size=32,
    gradient_checkpointing=True,
    learning_rate=1e-2,
    max_steps=30,
    logging_steps=1,
    save_strategy="no",
    report_to="none",
    remove_unused_columns=False,
    fp16=torch.cuda.is_available(),
    dataloader_pin_memory=False,
    max_grad_norm=1.0,
    label_names=["labels"],
)
trainer = Trainer(model, training_args, train_dataset=rows(), data_collator=collate)
before = fingerprint(trainer.model)
trainer.train()
note(
    [line["loss"] for line in trainer.state.log_history if "loss" in line], before, fingerprint(trainer.model)
)
