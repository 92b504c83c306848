"""Resumable autoencoder training on Fashion-MNIST."""
import os
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms

CKPT = "runs/ae/last.pt"
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")


class AE(nn.Module):
    def __init__(self, z=32):
        super().__init__()
        self.enc = nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, z))
        self.dec = nn.Sequential(nn.Linear(z, 256), nn.ReLU(), nn.Linear(256, 784), nn.Sigmoid())

    def forward(self, x):
        return self.dec(self.enc(x))


model = AE().to(device)
opt = torch.optim.Adam(model.parameters(), 1e-3)
start = 0
if os.path.exists(CKPT):
    state = torch.load(CKPT, map_location=device)
    model.load_state_dict(state["model"])
    opt.load_state_dict(state["opt"])
    start = state["epoch"] + 1
elif os.path.exists("warmstart.pt"):
    model.load_state_dict(torch.load("warmstart.pt", "cpu"))
elif os.path.exists("encoder.pt"):
    model.enc.load_state_dict(torch.load("encoder.pt", device, weights_only=True))

loader = DataLoader(datasets.FashionMNIST("data", download=True, transform=transforms.ToTensor()), 128, shuffle=True)
os.makedirs(os.path.dirname(CKPT), exist_ok=True)
for epoch in range(start, 20):
    tot = 0.
    for x, _ in loader:
        x = x.to(device)
        loss = ((model(x) - x.flatten(1)) ** 2).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        tot += loss.item()
    print(epoch, tot / len(loader))
    torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "epoch": epoch}, CKPT)
