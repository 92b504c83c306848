"""From step 12 on the inputs are not normalised: products overflow in fp16, and the scaler skips every step."""

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
    fit(optimizer, lambda step: cross_entropy(model(points * (1e6 if step >= HARM_AT else 1)), labels))
