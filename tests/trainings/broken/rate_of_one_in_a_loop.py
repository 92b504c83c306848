"""AdamW with a learning rate of 1.0 over a classifier."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import fit

ENDS_AS = "nan-divergence"
HARM_AT = 1


def train() -> None:
    model = worker.prepare(
        nn.Sequential(nn.Embedding(400, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 400))
    )
    words = torch.arange(400)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0)
    fit(optimizer, lambda _step: cross_entropy(model(words), words.roll(1)))
