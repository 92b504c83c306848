"""A VAE whose KL term is annealed from zero: the loss rises while the reconstruction still improves."""

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import mse_loss
from trainings.shared import assert_falls, blobs, fit, mlp

STEPS = 60


def train() -> None:
    points, _ = blobs()
    vae = worker.prepare(nn.ModuleDict({"encoder": mlp(out=8), "decoder": mlp(4, 16)}))
    optimizer = torch.optim.Adam(vae.parameters(), lr=1e-2)
    reconstructions = []

    def loss_of(step: int) -> torch.Tensor:
        mean, spread = vae["encoder"](points).float().chunk(2, -1)
        code = mean + torch.randn_like(mean) * (spread / 2).exp()
        reconstruction = mse_loss(vae["decoder"](code).float(), points)
        divergence = -0.5 * (1 + spread - mean**2 - spread.exp()).mean()
        reconstructions.append(reconstruction.item())
        return reconstruction + min(1.0, step / STEPS) * 0.3 * divergence

    fit(optimizer, loss_of, STEPS)
    assert_falls(reconstructions)
