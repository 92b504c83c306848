"""An embedding with sparse gradients: a step moves a few of its rows, and SparseAdam needs gradients of its own kind."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from trainings.shared import assert_falls

STEPS = 40
PRECISIONS = (
    "fp32",
    "bf16",
)  # SparseAdam and a scaler: torch has no kernel that unscales sparse gradients on a CPU


def train() -> None:
    table = nn.Embedding(5000, 16, sparse=True)
    head = nn.Linear(16, 4)
    model = worker.prepare(nn.Sequential(table, head))
    rows = torch.randint(5000, (64,))
    optimizers = [
        torch.optim.SparseAdam(table.parameters(), lr=3e-2),
        torch.optim.Adam(head.parameters(), lr=3e-2),
    ]
    losses = []
    for step in range(1, STEPS + 1):
        chosen = rows[torch.randint(64, (16,))]
        with worker.autocast():
            loss = cross_entropy(model(chosen), chosen % 4)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
        worker.log(step, loss=loss)
    assert_falls(losses)
