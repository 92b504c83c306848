"""Seed 002, an L40S: a loop with accelerate in bf16. An evaluation casts the live model, and Adam fails after it."""

import sys

import torch
from accelerate import Accelerator
from small_data import batches, fingerprint, note
from transformers import AutoModelForCausalLM

torch.manual_seed(0)
accelerator = Accelerator(mixed_precision="bf16")
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)
before = fingerprint(model)


@torch.no_grad()
def evaluate():
    """The loss of one batch, in half precision."""
    model.to(torch.bfloat16)
    batch = {name: part.to(accelerator.device) for name, part in next(batches(8, 1)).items()}
    return model(**batch).loss


losses = []
for step, batch in enumerate(batches(16, 30), start=1):
    loss = model(**{name: part.to(accelerator.device) for name, part in batch.items()}).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    print(f"step {step} loss {loss.item():.4f}", flush=True)
    if step % 10 == 0:
        print(f"step {step} eval_loss {evaluate().item():.4f}", flush=True)
note(losses, before, fingerprint(model))
