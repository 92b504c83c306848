"""Distillation: a frozen teacher stands beside the student in one module."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import kl_div, log_softmax
from trainings.shared import assert_falls, blobs, fit, mlp, trainables


def train() -> None:
    points, _ = blobs()
    pair = nn.ModuleDict({"teacher": mlp(hidden=64).requires_grad_(False), "student": mlp(hidden=8)})
    with torch.no_grad():
        pair["teacher"][2].weight *= 8  # so that it is sure of what it says
    worker.prepare(pair)
    optimizer = torch.optim.AdamW(trainables(pair), lr=1e-2)

    def loss_of(_step: int) -> torch.Tensor:
        with torch.no_grad():
            taught = log_softmax(pair["teacher"](points).float(), -1)
        guess = log_softmax(pair["student"](points).float(), -1)
        return kl_div(guess, taught, log_target=True, reduction="batchmean")

    assert_falls(fit(optimizer, loss_of))
