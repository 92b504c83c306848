"""Segmentation of cells with a small U-Net; tiles come from workers, the big masks do not."""
import glob

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from unet import UNet


class Tiles(Dataset):
    def __init__(self, pattern):
        self.files = sorted(glob.glob(pattern))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        z = np.load(self.files[i])
        return torch.from_numpy(z["img"]).float(), torch.from_numpy(z["mask"]).long()


class BigMasks(Dataset):
    """Whole slides, kept on the card."""

    def __init__(self, pattern):
        self.files = sorted(glob.glob(pattern))

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        z = np.load(self.files[i])
        return torch.from_numpy(z["img"]).float().to("cuda"), torch.from_numpy(z["mask"]).long().to("cuda")


train_loader = DataLoader(Tiles("tiles/*.npz"), 16, shuffle=True, num_workers=8, pin_memory=True)
slide_loader = DataLoader(BigMasks("slides/*.npz"), 1, num_workers=0)
net = UNet(3, 4).to("cuda")
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
loss_fn = nn.CrossEntropyLoss()
for epoch in range(40):
    net.train()
    for x, m in train_loader:
        loss = loss_fn(net(x.to("cuda", non_blocking=True)), m.to("cuda", non_blocking=True))
        opt.zero_grad()
        loss.backward()
        opt.step()
    net.eval()
    with torch.no_grad():
        dev = sum(loss_fn(net(x), m).item() for x, m in slide_loader) / len(slide_loader)
    print(f"{epoch:02d} train {loss.item():.3f} dev {dev:.3f}")
    torch.save(net.state_dict(), f"unet_{epoch:02d}.pt")
