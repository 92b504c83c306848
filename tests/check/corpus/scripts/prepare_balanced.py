"""Flan-T5 on legal clauses with Accelerate and Adafactor."""
import torch
from accelerate import Accelerator
from datasets import load_dataset
from torch.utils.data import DataLoader
from transformers import Adafactor, AutoModelForSeq2SeqLM, AutoTokenizer, DataCollatorForSeq2Seq

PLACEMENT = "balanced"
accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=16)
tok = AutoTokenizer.from_pretrained("google/flan-t5-xl")
net = AutoModelForSeq2SeqLM.from_pretrained("google/flan-t5-xl", dtype=torch.float32, device_map=PLACEMENT)

clauses = load_dataset("csv", data_files="clauses.csv", split="train")
clauses = clauses.map(
    lambda b: tok(b["clause"], text_target=b["plain"], truncation=True, max_length=400),
    batched=True, remove_columns=clauses.column_names)
dl = DataLoader(clauses, batch_size=2, shuffle=True, collate_fn=DataCollatorForSeq2Seq(tok, model=net))
opt = Adafactor(net.parameters(), lr=1e-4, scale_parameter=False, relative_step=False)
net, opt, dl = accelerator.prepare(net, opt, dl)

for epoch in range(3):
    net.train()
    for batch in dl:
        with accelerator.accumulate(net):
            loss = net(**batch).loss
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad()
    accelerator.print(f"{epoch=} {loss.item()=:.4f}")
    accelerator.unwrap_model(net).save_pretrained("t5-clauses")
