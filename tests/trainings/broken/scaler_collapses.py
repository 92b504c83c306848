"""From step 12 on each gradient is too large for fp16 at any scale: the scaler halves its scale at every step."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "nan-divergence"
HARM_AT = 12
PRECISIONS = ("fp16",)


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        loss = cross_entropy(model(points), labels)
        return loss + (loss - loss.detach()) * 1e38 if step >= HARM_AT else loss

    fit(optimizer, loss_of)
