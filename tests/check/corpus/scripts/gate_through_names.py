"""Tune a chat model in 4 bits; one answer of torch decides all types."""

import torch
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, Trainer, TrainingArguments

from chats import chats, collate

use_bf16 = torch.cuda.is_available() and torch.cuda.is_bf16_supported()
kind = "bfloat16" if use_bf16 else "float16"
compute = {"bfloat16": torch.bfloat16, "float16": torch.float16}[kind]

bits = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=compute)
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen3-0.6B", quantization_config=bits, dtype=compute)
model = get_peft_model(prepare_model_for_kbit_training(model), LoraConfig(r=8, task_type="CAUSAL_LM"))
arguments = TrainingArguments("chat", bf16=use_bf16, fp16=not use_bf16, logging_nan_inf_filter=False)
trainer = Trainer(model=model, args=arguments, train_dataset=chats(), data_collator=collate)
trainer.train()
