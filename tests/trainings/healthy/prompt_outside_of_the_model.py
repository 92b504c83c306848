"""A soft prompt that belongs to no watched module: every weight of the model is frozen after `prepare`, and stands still."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp


def train() -> None:
    model = worker.prepare(mlp())
    model.requires_grad_(False)
    points, labels = blobs()
    prompt = nn.Parameter(torch.zeros(16))
    turn = nn.Parameter(torch.eye(16))
    optimizer = torch.optim.AdamW([prompt, turn], lr=5e-2)
    assert_falls(fit(optimizer, lambda _step: cross_entropy(model(points @ turn + prompt), labels)))
