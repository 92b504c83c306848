"""DCGAN on CelebA with mixed precision."""
import torch
import torch.nn as nn
import torchvision.utils as vutils
from torch.amp import GradScaler, autocast

from data import celeba_loader
from nets import Discriminator, Generator


class GanTraining:
    def __init__(self, nz=100, lr=2e-4):
        self.nz = nz
        self.g, self.d = Generator(nz).cuda(), Discriminator().cuda()
        self.opt_g = torch.optim.Adam(self.g.parameters(), lr, betas=(0.5, 0.999))
        self.opt_d = torch.optim.Adam(self.d.parameters(), lr, betas=(0.5, 0.999))
        self.scaler = GradScaler("cuda")
        self.bce = nn.BCEWithLogitsLoss()

    def step(self, real):
        n = real.size(0)
        z = torch.randn(n, self.nz, 1, 1, device=real.device)
        with autocast("cuda", dtype=torch.float16):
            fake = self.g(z)
            loss_d = self.bce(self.d(real), torch.ones(n, device=real.device)) + \
                self.bce(self.d(fake.detach()), torch.zeros(n, device=real.device))
        self.opt_d.zero_grad()
        self.scaler.scale(loss_d).backward()
        self.scaler.step(self.opt_d)
        with autocast("cuda", dtype=torch.float16):
            loss_g = self.bce(self.d(fake), torch.ones(n, device=real.device))
        self.opt_g.zero_grad()
        self.scaler.scale(loss_g).backward()
        self.scaler.step(self.opt_g)
        self.scaler.update()
        return loss_d.item(), loss_g.item()

    def save(self, path):
        torch.save({"g": self.g.state_dict(), "d": self.d.state_dict()}, path)


run = GanTraining()
for epoch in range(25):
    for i, (imgs, _) in enumerate(celeba_loader(128, workers=4)):
        d, g = run.step(imgs.cuda())
        if i % 100 == 0:
            print(epoch, i, f"{d:.3f} {g:.3f}")
    run.save(f"dcgan_{epoch}.pt")
