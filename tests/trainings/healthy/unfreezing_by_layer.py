"""ULMFiT: every five steps another layer is thawed, with a new optimizer of smaller rates for lower layers."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit_scaled

STEPS = 30


def train() -> None:
    layers = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(4)]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    for layer in layers:
        layer.requires_grad_(False)
    worker.prepare(model)
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model[-1].parameters(), lr=3e-2)
    losses = []
    for step in range(1, STEPS + 1):
        if step % 5 == 0 and step <= 20:
            model[4 - step // 5].requires_grad_()
            groups = [
                {"params": layer.parameters(), "lr": 3e-2 / 2.6 ** (4 - place)}
                for place, layer in enumerate(model)
                if next(layer.parameters()).requires_grad
            ]
            optimizer = torch.optim.AdamW(groups)
        with worker.autocast():
            loss = cross_entropy(model(points).float(), labels)
        fit_scaled(optimizer, loss)
        losses.append(loss.item())
        worker.log(step, loss=loss)
    assert_falls(losses)
