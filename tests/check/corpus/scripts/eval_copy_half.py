"""CIFAR-10 with a small ResNet; every epoch is also scored in half precision."""
import copy

import torch
from torch import nn, optim
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms as T


def accuracy(net, loader, device, dtype=torch.float32):
    net.eval()
    good = total = 0
    with torch.no_grad():
        for x, y in loader:
            x = x.to(device, dtype)
            good += (net(x).argmax(1).cpu() == y).sum().item()
            total += len(y)
    return good / total


def main():
    device = torch.device("cuda")
    tf = T.Compose([T.ToTensor(), T.Normalize((0.5,) * 3, (0.25,) * 3)])
    train = DataLoader(datasets.CIFAR10("data", train=True, download=True, transform=tf), 256, shuffle=True, num_workers=4)
    test = DataLoader(datasets.CIFAR10("data", train=False, transform=tf), 512)
    net = models.resnet18(num_classes=10).to(device)
    optimizer = optim.Adam(net.parameters(), lr=1e-3)
    crit = nn.CrossEntropyLoss()
    best = 0.0
    for epoch in range(30):
        net.train()
        for x, y in train:
            optimizer.zero_grad()
            crit(net(x.to(device)), y.to(device)).backward()
            optimizer.step()
        acc32 = accuracy(net, test, device)
        half_net = copy.deepcopy(net).half()
        acc16 = accuracy(half_net, test, device, torch.float16)
        print(f"{epoch}: fp32 {acc32:.4f} fp16 {acc16:.4f}")
        if acc16 > best:
            best = acc16
            torch.save(half_net.state_dict(), "best_half.pth")


if __name__ == "__main__":
    main()
