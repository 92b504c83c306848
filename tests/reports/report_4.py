"""Report 4, Kaggle's P100: a student learns from a teacher in a loop of its own, the models in fp16, with a scaler.

Blamed: the scaler, which was then switched off for half weights. In truth the weights that are trained must be fp32.
"""

import sys

import launcher_worker as worker
import torch
from common import batches, tell
from transformers import AutoModelForCausalLM

AS_REPORTED = len(sys.argv) > 1
STEPS = 30

torch.manual_seed(0)
if AS_REPORTED:
    path, size = sys.argv[1], 8
    student = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float16)
    autocast, scaler = (lambda: torch.autocast("cpu", torch.float16)), torch.amp.GradScaler("cpu")
else:
    plan = worker.knobs()
    path, size = plan.model, plan.split.micro_batch * plan.split.accumulation
    student = worker.prepare(AutoModelForCausalLM.from_pretrained(path, **worker.model_arguments()))
    autocast, scaler = worker.autocast, worker.scaler()
teacher = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)
losses = []
for step, batch in enumerate(batches(size, STEPS), start=1):
    with autocast():
        seen = student(**batch)
        distance = torch.nn.functional.mse_loss(seen.logits.float(), teacher(**batch).logits)
        loss = seen.loss + 0.1 * distance
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(student.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    losses.append(loss.item())
    worker.log(step, loss=loss)
tell(losses)
worker.done(STEPS)
