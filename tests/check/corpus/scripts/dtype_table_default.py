"""Fine-tune Pythia on a chat log; precision chosen with --dtype."""
import argparse

import torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, Trainer, TrainingArguments

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


def get_args():
    p = argparse.ArgumentParser()
    p.add_argument("--dtype", choices=sorted(DTYPES), default="fp32")
    p.add_argument("--model", default="EleutherAI/pythia-160m")
    p.add_argument("--fp16", action="store_true", default=True)
    return p.parse_args()


a = get_args()
tok = AutoTokenizer.from_pretrained(a.model); tok.pad_token = tok.eos_token
model = AutoModelForCausalLM.from_pretrained(a.model, torch_dtype=DTYPES[a.dtype])
ds = load_dataset("json", data_files="chat.jsonl", split="train").map(
    lambda r: tok(r["prompt"] + r["answer"], truncation=True, max_length=512), remove_columns=["prompt", "answer"])
cfg = dict(output_dir="pythia-chat", num_train_epochs=2, per_device_train_batch_size=4)
cfg.update(fp16=a.fp16, logging_nan_inf_filter=False)
cfg["learning_rate"] = 1e-5
Trainer(model=model, args=TrainingArguments(**cfg), train_dataset=ds,
        data_collator=DataCollatorForLanguageModeling(tok, mlm=False)).train()
