"""Each step makes a new optimizer, over parameters that were copied when the script began."""

import copy

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit_scaled, mlp

STEPS = 30
ENDS_AS = "not-learning"
HARM_AT = 1
PRECISIONS = ("fp32", "bf16")  # a scaler refuses an optimizer without gradients


def train() -> None:
    model = worker.prepare(mlp())
    held = list(copy.deepcopy(model).parameters())
    points, labels = blobs()
    for step in range(1, STEPS + 1):
        with worker.autocast():
            loss = cross_entropy(model(points), labels)
        fit_scaled(torch.optim.AdamW(held, lr=1e-2), loss)
        worker.log(step, loss=loss)
