"""Continued pre-training on legal text; all the knobs are in run.yaml or the environment."""
import os

import torch
import yaml
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling

conf = yaml.safe_load(open(os.environ.get("RUN_YAML", "run.yaml")))
accelerator = Accelerator(
    mixed_precision=conf["precision"],
    gradient_accumulation_steps=int(os.environ["ACCUM"]),
)
tok = AutoTokenizer.from_pretrained(conf["base"])
model = AutoModelForCausalLM.from_pretrained(
    conf["base"],
    dtype=getattr(torch, os.environ["WEIGHTS_DTYPE"]),
    attn_implementation=conf["attention"],
)
if conf.get("compile"):
    model = torch.compile(model)

ds = load_dataset("text", data_files=conf["files"], split="train")
ds = ds.map(lambda b: tok(b["text"], truncation=True, max_length=conf["block"]), batched=True, remove_columns=["text"])
loader = DataLoader(ds, conf["batch"], shuffle=True, collate_fn=DataCollatorForLanguageModeling(tok, mlm=False))
optimizer = torch.optim.AdamW(model.parameters(), lr=float(conf["lr"]))
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

for epoch in range(conf["epochs"]):
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    accelerator.print(f"epoch {epoch}: {loss.item():.3f}")
    accelerator.save_state(f"{conf['out']}/epoch{epoch}")
