"""Calibration after a training: the loss reaches a temperature alone, and all other gradients are zeroed in place."""

import functools

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 60


def train() -> None:
    points, labels = blobs()
    labels = torch.where(torch.rand(64) < 0.3, torch.randint(4, (64,)), labels)
    model = nn.ModuleDict({"body": mlp(), "scale": nn.Linear(4, 4)})
    model["temperature"] = nn.ParameterList([nn.Parameter(torch.ones(()))])
    worker.prepare(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    optimizer.zero_grad = functools.partial(optimizer.zero_grad, set_to_none=False)

    def loss_of(step: int) -> torch.Tensor:
        guess = model["scale"](model["body"](points))
        if step > 20:
            guess = guess.detach() * 8
        return cross_entropy(guess * model["temperature"][0], labels)

    losses = fit(optimizer, loss_of, STEPS)
    assert_falls(losses[:20])
    assert_falls(losses[20:])
