"""Depth estimation on NYU with heavy augmentation."""
import h5py
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from depthnet import DepthNet


class NYU(Dataset):
    def __init__(self, path, train=True):
        self.path, self.train = path, train
        with h5py.File(path) as f:
            self.n = len(f["images"])

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        with h5py.File(self.path) as f:
            rgb = torch.from_numpy(f["images"][i].astype(np.float32) / 255).to("cuda")
            depth = torch.from_numpy(f["depths"][i].astype(np.float32)).to("cuda")
        if self.train and np.random.rand() < 0.5:
            rgb, depth = rgb.flip(-1), depth.flip(-1)
        return rgb, depth[None]


def silog(pred, gt, lam=0.85):
    d = torch.log(pred.clamp(min=1e-3)) - torch.log(gt.clamp(min=1e-3))
    return torch.sqrt((d ** 2).mean() - lam * d.mean() ** 2)


def main():
    loader = DataLoader(NYU("nyu.h5"), batch_size=8, shuffle=True, num_workers=4)
    net = DepthNet().to("cuda")
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
    for epoch in range(25):
        for rgb, depth in loader:
            loss = silog(net(rgb), depth)
            opt.zero_grad(); loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
            opt.step()
        print(epoch, loss.item())
    torch.save(net.state_dict(), "depthnet.pt")


if __name__ == "__main__":
    main()
