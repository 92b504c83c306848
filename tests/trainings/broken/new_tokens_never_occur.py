"""Only the rows of new tokens are trained, by a hook that masks the others, and no text has a new token."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import fit

OLD, NEW = 32, 4
ENDS_AS = "not-learning"
HARM_AT = 1


def train() -> None:
    model = nn.Sequential(nn.Embedding(OLD + NEW, 16), nn.Linear(16, OLD))
    model[1].requires_grad_(False)
    worker.prepare(model)
    is_new = (torch.arange(OLD + NEW) >= OLD).float()[:, None]
    model[0].weight.register_hook(lambda gradient: gradient * is_new)
    words = torch.arange(OLD)
    optimizer = torch.optim.AdamW(model[0].parameters(), lr=1e-2, weight_decay=0.0)
    fit(optimizer, lambda _step: cross_entropy(model(words), words.roll(1)))
