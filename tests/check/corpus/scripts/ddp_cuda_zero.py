"""MNIST with DistributedDataParallel (class exercise), start with torchrun."""
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms


class ConvNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.c1, self.c2 = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.f1, self.f2 = nn.Linear(9216, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.c2(F.relu(self.c1(x)))), 2)
        return self.f2(F.relu(self.f1(x.flatten(1))))


def main():
    dist.init_process_group("nccl")
    device = torch.device("cuda:0")
    model = ConvNet().to(device)
    ddp_model = DDP(model)
    ds = datasets.MNIST("data", train=True, download=True, transform=transforms.ToTensor())
    sampler = DistributedSampler(ds)
    loader = DataLoader(ds, batch_size=64, sampler=sampler)
    opt = torch.optim.Adadelta(ddp_model.parameters(), lr=1.0)
    for epoch in range(14):
        sampler.set_epoch(epoch)
        for x, y in loader:
            loss = F.cross_entropy(ddp_model(x.to(device)), y.to(device))
            opt.zero_grad()
            loss.backward()
            opt.step()
        print(f"rank {dist.get_rank()} epoch {epoch} loss {loss.item():.4f}")
    if dist.get_rank() == 0:
        torch.save(model.state_dict(), "mnist.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
