"""QLoRA fine-tune on the OpenAssistant-Guanaco set."""
import os

import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BitsAndBytesConfig,
    DataCollatorForLanguageModeling,
    Trainer,
    TrainingArguments,
)

MODEL = "meta-llama/Llama-2-13b-hf"
local_rank = int(os.environ.get("LOCAL_RANK", 0))

quant = BitsAndBytesConfig(
    load_in_4bit=True,
    bnb_4bit_quant_type="nf4",
    bnb_4bit_use_double_quant=True,
    bnb_4bit_compute_dtype=torch.bfloat16,
)
model = AutoModelForCausalLM.from_pretrained(
    MODEL,
    quantization_config=quant,
    dtype=torch.bfloat16,
    device_map={"": local_rank},
)
model = prepare_model_for_kbit_training(model, gradient_checkpointing_kwargs={"use_reentrant": False})
model = get_peft_model(
    model,
    LoraConfig(r=64, lora_alpha=16, lora_dropout=0.1, target_modules="all-linear", task_type="CAUSAL_LM"),
)

tok = AutoTokenizer.from_pretrained(MODEL)
tok.pad_token = tok.eos_token
ds = load_dataset("timdettmers/openassistant-guanaco", split="train")
ds = ds.map(lambda ex: tok(ex["text"], truncation=True, max_length=512), batched=True, remove_columns=["text"])

args = TrainingArguments(
    "guanaco-13b",
    per_device_train_batch_size=1,
    gradient_accumulation_steps=16,
    max_steps=1875,
    learning_rate=2e-4,
    bf16=True,
    optim="paged_adamw_32bit",
    save_steps=500,
    logging_steps=10,
)
Trainer(model, args, DataCollatorForLanguageModeling(tok, mlm=False), ds).train()
model.save_pretrained("guanaco-13b/final")
