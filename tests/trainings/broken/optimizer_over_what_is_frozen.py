"""The optimizer holds the frozen encoder alone, and the head, which is trained, belongs to none."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 1
PRECISIONS = ("fp32", "bf16")  # a scaler refuses an optimizer without gradients


def train() -> None:
    encoder = mlp(16, 32).requires_grad_(False)
    model = worker.prepare(nn.Sequential(encoder, nn.Linear(32, 4)))
    points, labels = blobs()
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-2)
    fit(optimizer, lambda _step: cross_entropy(model(points), labels))
