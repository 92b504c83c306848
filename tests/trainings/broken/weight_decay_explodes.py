"""AdamW's weight decay is 1e4: each step multiplies every weight by minus ninety-nine."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e4)
    fit(optimizer, lambda _step: cross_entropy(model(points), labels))
