"""From step 8 on the script freezes the model to generate, and forgets to thaw it; its inputs require a gradient."""

import launcher_worker as worker
import torch
from torch.nn.functional import cross_entropy
from trainings.shared import blobs, fit, mlp

ENDS_AS = "not-learning"
HARM_AT = 8
PRECISIONS = ("fp32", "bf16")  # a scaler refuses an optimizer without gradients


def train() -> None:
    model = worker.prepare(mlp())
    points, labels = blobs()
    points.requires_grad_()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def loss_of(step: int) -> torch.Tensor:
        if step == HARM_AT:
            model.requires_grad_(False)
        return cross_entropy(model(points), labels)

    fit(optimizer, loss_of)
