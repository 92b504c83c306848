"""The batch of step 9 has a NaN in its data, and one such batch spoils every weight."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 9
PRECISIONS = ("fp32", "bf16")  # a scaler skips that one step, and the training goes on


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        some = points.clone()
        some[0, 0] = float("nan") if step == HARM_AT else 0.0
        return cross_entropy(model(some), labels)

    fit(optimizer, loss_of)
