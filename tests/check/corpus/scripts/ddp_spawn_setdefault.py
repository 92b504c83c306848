"""Data-parallel toy regression, one process a card, started with mp.spawn."""
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


def setup(rank, world_size):
    os.environ.setdefault("MASTER_ADDR", "localhost")
    os.environ.setdefault("MASTER_PORT", "29500")
    dist.init_process_group("nccl", rank=rank, world_size=world_size)


def worker(rank, world_size, epochs):
    setup(rank, world_size)
    net = nn.Sequential(nn.Linear(20, 128), nn.GELU(), nn.Linear(128, 1)).cuda(rank)
    net = DDP(net, device_ids=[rank])
    data = TensorDataset(torch.randn(10000, 20), torch.randn(10000, 1))
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank)
    loader = DataLoader(data, batch_size=64, sampler=sampler)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    for e in range(epochs):
        sampler.set_epoch(e)
        for x, y in loader:
            x, y = x.cuda(rank), y.cuda(rank)
            loss = nn.functional.mse_loss(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            torch.save(net.module.state_dict(), f"reg_{e}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    n = torch.cuda.device_count()
    mp.spawn(worker, args=(n, 5), nprocs=n, join=True)
