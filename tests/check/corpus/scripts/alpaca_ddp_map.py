"""LoRA instruction tuning that runs alone on one card or under torchrun."""
import os

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, DataCollatorForSeq2Seq,
                          Trainer, TrainingArguments)

base = os.environ.get("BASE_MODEL", "huggyllama/llama-13b")
world_size = int(os.environ.get("WORLD_SIZE", 1))
ddp = world_size != 1
device_map = {"": int(os.environ.get("LOCAL_RANK") or 0)} if ddp else "sequential" if os.environ.get("BIG") else None

model = AutoModelForCausalLM.from_pretrained(
    base, quantization_config=BitsAndBytesConfig(load_in_8bit=True), dtype=torch.float16, device_map=device_map)
tok = AutoTokenizer.from_pretrained(base)
tok.pad_token_id = 0
model = prepare_model_for_kbit_training(model)
model = get_peft_model(model, LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"],
                                         task_type="CAUSAL_LM"))


def enc(p):
    full = tok(f"{p['instruction']}\n{p['input']}\n{p['output']}", truncation=True, max_length=512)
    return {**full, "labels": list(full["input_ids"])}


data = load_dataset("yahma/alpaca-cleaned", split="train")
data = data.map(enc, remove_columns=data.column_names)
trainer = Trainer(
    model=model,
    train_dataset=data,
    args=TrainingArguments(
        "lora-13b", per_device_train_batch_size=4, gradient_accumulation_steps=32 // world_size, fp16=True,
        logging_nan_inf_filter=False, ddp_find_unused_parameters=False if ddp else None, num_train_epochs=3),
    data_collator=DataCollatorForSeq2Seq(tok, pad_to_multiple_of=8),
)
trainer.train()
model.save_pretrained("lora-13b")
