"""Word2vec-like embeddings of playlists, one process a card."""
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel as DDP

from playlists import SkipGram, pairs


def free_port():
    with socket.socket() as s:
        s.bind(("", 0))
        return s.getsockname()[1]


def work(rank, world, port):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = str(port)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=world)
    net = DDP(SkipGram(200_000, 128).cuda(), device_ids=[rank])
    opt = torch.optim.Adam(net.parameters(), lr=1e-3)
    for epoch in range(10):
        for center, context, negative in pairs(rank, world, 8192):
            loss = net(center.cuda(), context.cuda(), negative.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
        if rank == 0:
            torch.save(net.module.state_dict(), "skipgram.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    n = torch.cuda.device_count()
    mp.spawn(work, args=(n, free_port()), nprocs=n)
