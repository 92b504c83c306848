"""Magnitude pruning: every ten steps half of the remaining weights become zero, and a mask on the gradients keeps them there."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 60


def train() -> None:
    model = worker.prepare(mlp(hidden=64))
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    masks = {name: torch.ones_like(part) for name, part in model.named_parameters() if part.dim() == 2}
    for name, part in model.named_parameters():
        if name in masks:
            part.register_hook(lambda gradient, name=name: gradient * masks[name])

    def loss_of(step: int) -> torch.Tensor:
        if step % 10 == 0 and step < 40:
            for name, part in model.named_parameters():
                if name in masks:
                    kept = part.detach()[masks[name] > 0].abs().median()
                    masks[name] *= (part.detach().abs() > kept).float()
                    part.data *= masks[name]
        return cross_entropy(model(points), labels)

    assert_falls(fit(optimizer, loss_of, STEPS), to=0.5)
