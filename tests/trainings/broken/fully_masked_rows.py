"""From step 9 on a row of the attention mask is all minus infinity, and its softmax is NaN."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import fit

ENDS_AS = "nan-divergence"
HARM_AT = 9


def train() -> None:
    model = worker.prepare(nn.ModuleList([nn.Embedding(32, 16), nn.Linear(16, 16), nn.Linear(16, 32)]))
    words = torch.randint(32, (8, 12))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        hidden = model[0](words)
        mask = torch.full((12, 12), -torch.inf).triu(0 if step >= HARM_AT else 1)
        scores = model[1](hidden) @ hidden.transpose(1, 2) + mask
        return cross_entropy(model[2](scores.softmax(-1) @ hidden).flatten(0, 1).float(), words.flatten())

    fit(optimizer, loss_of)
