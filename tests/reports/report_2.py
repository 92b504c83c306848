"""Report 2, an L40S: a loop with accelerate in bf16 crashes at a late step, in Adam.

Blamed: bf16, and an Accelerator that picks it. In truth an evaluation casts the live model once the optimizer has
state of the old dtype.
"""

import sys

import launcher_worker as worker
import torch
from accelerate import Accelerator
from common import batches, tell
from transformers import AutoModelForCausalLM

AS_REPORTED = len(sys.argv) > 1
STEPS = 30

torch.manual_seed(0)
if AS_REPORTED:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    size = 8
else:
    plan = worker.knobs()
    model = worker.prepare(AutoModelForCausalLM.from_pretrained(plan.model, **worker.model_arguments()))
    accelerator = worker.accelerator()
    size = plan.split.micro_batch * plan.split.accumulation
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
model, optimizer = accelerator.prepare(model, optimizer)


def evaluate() -> None:
    """Evaluate in half precision: as reported by a cast of the live model, else under autocast."""
    batch = next(batches(8, 1))
    with torch.no_grad():
        if AS_REPORTED:
            model.to(torch.bfloat16)(**batch)
        else:
            with worker.autocast():
                model(**batch)


losses = []
for step, batch in enumerate(batches(size, STEPS), start=1):
    loss = model(**batch).loss
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    worker.log(step, loss=loss)
    if step % 10 == 0:
        evaluate()
tell(losses)
worker.done(STEPS)
