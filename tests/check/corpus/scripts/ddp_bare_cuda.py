"""Contrastive pre-training (SimCLR) on several cards of one host."""
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

from simclr import SimCLR, nt_xent, two_view_loader


def run(rank, world):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29500"
    dist.init_process_group("nccl", rank=rank, world_size=world)
    model = SimCLR(proj=128).cuda()
    model = DistributedDataParallel(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.3 * world, momentum=0.9, weight_decay=1e-6)
    loader, sampler = two_view_loader("stl10", batch=256, rank=rank, world=world)
    for epoch in range(100):
        sampler.set_epoch(epoch)
        for (a, b), _ in loader:
            z1, z2 = model(a.cuda(non_blocking=True)), model(b.cuda(non_blocking=True))
            loss = nt_xent(z1, z2, temperature=0.5)
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            print(epoch, loss.item())
            torch.save(model.module.state_dict(), f"simclr_{epoch:03d}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    world = torch.cuda.device_count()
    mp.spawn(run, args=(world,), nprocs=world)
