"""A loop with accelerate, which clips gradients and accumulates two micro-batches."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, mlp

STEPS = 30


def train() -> None:
    accelerator = worker.accelerator(gradient_accumulation_steps=2)
    model = worker.prepare(mlp())
    points, labels = blobs()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    losses = []
    for batch in range(2 * STEPS):
        with accelerator.accumulate(model):
            half = slice(batch % 2, None, 2)
            loss = cross_entropy(model(points[half]), labels[half])
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        worker.log(batch // 2 + 1, loss=loss)
    assert_falls(losses)
