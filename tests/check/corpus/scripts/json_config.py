"""python json_config.py configs/run7.json"""
import json
import sys

import torch
from datasets import load_from_disk
from transformers import AutoModelForCausalLM, AutoTokenizer, Trainer, TrainingArguments, default_data_collator

with open(sys.argv[1], encoding="utf-8") as f:
    cfg = json.load(f)

model_cfg, train_cfg = cfg["model"], cfg["train"]
tokenizer = AutoTokenizer.from_pretrained(model_cfg["name"])
model = AutoModelForCausalLM.from_pretrained(model_cfg["name"], dtype=getattr(torch, model_cfg["dtype"]))
if model_cfg.get("freeze_embeddings"):
    model.get_input_embeddings().requires_grad_(False)

args = TrainingArguments(**train_cfg)
data = load_from_disk(cfg["data"])
trainer = Trainer(
    model=model,
    args=args,
    train_dataset=data["train"],
    eval_dataset=data["dev"],
    processing_class=tokenizer,
    data_collator=default_data_collator,
)
trainer.train(resume_from_checkpoint=cfg.get("resume"))
trainer.save_model(args.output_dir)
