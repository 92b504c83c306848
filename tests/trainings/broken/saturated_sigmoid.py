"""Inputs that were never scaled saturate every sigmoid: its derivative is exactly zero in fp32."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import mse_loss
from trainings.shared import blobs, fit

ENDS_AS = "not-learning"
HARM_AT = 1
PRECISIONS = ("fp32", "bf16")


def train() -> None:
    model = worker.prepare(nn.Sequential(nn.Linear(16, 1), nn.Sigmoid()))
    points, labels = blobs()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    goals = (labels % 2).float()[:, None]
    fit(optimizer, lambda _step: mse_loss(model(points * 1e7).float(), goals))
