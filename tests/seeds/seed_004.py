"""Seed 004, Kaggle's P100: a student learns from a teacher in a loop of its own, the models in fp16, with a scaler.

With the word `mended` it is the report's own mend: no scaler where the weights are fp16.
"""

import sys

import torch
from small_data import batches, fingerprint, note
from transformers import AutoModelForCausalLM

torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dtype = torch.float16 if device.type == "cuda" else torch.float32
student = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=dtype).to(device)
teacher = (
    AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=dtype).to(device).requires_grad_(False).eval()
)
use_scaler = torch.cuda.is_available()
if "mended" in sys.argv and any(part.dtype == torch.float16 for part in student.parameters()):
    print("WARNING: FP16 parameters detected - disabling gradient scaler to prevent errors")
    use_scaler = False
scaler = torch.amp.GradScaler("cuda", enabled=use_scaler)
optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
before = fingerprint(student)
losses = []
for step, cpu_batch in enumerate(batches(16, 30), start=1):
    batch = {name: part.to(device, non_blocking=True) for name, part in cpu_batch.items()}
    with torch.autocast(device.type, dtype=torch.float16, enabled=device.type == "cuda"):
        seen = student(**batch)
        with torch.no_grad():
            taught = teacher(**batch).logits
        distance = torch.nn.functional.mse_loss(seen.logits.float(), taught.float())
        loss = seen.loss + 0.1 * distance
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    losses.append(loss.item())
    print(f"step {step} loss {loss.item():.4f}", flush=True)
note(losses, before, fingerprint(student))
