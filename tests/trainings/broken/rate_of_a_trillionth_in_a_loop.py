"""Adam with a rate of 1e-12 over a classifier: only weights near zero are small enough to move."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 1
NOTICED_WITHIN = 20  # the first steps of a long warm-up move as little


def train() -> None:
    model = mlp()
    nn.init.zeros_(model[2].bias)
    worker.prepare(model)
    points, labels = blobs()
    fit(torch.optim.Adam(model.parameters(), lr=1e-12), lambda _step: cross_entropy(model(points), labels))
