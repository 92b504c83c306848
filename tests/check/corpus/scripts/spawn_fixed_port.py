"""LSTM translation baseline, data parallel with mp.spawn."""
import argparse
import os

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel as DDP

from nmt import Seq2Seq, batches


def ddp_setup(rank: int, world_size: int):
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    os.environ["MASTER_PORT"] = "12355"
    torch.cuda.set_device(rank)
    dist.init_process_group(backend="nccl", rank=rank, world_size=world_size)


class Trainer:
    def __init__(self, model, rank, save_every):
        self.rank, self.save_every = rank, save_every
        self.model = DDP(model.to(rank), device_ids=[rank])
        self.opt = optim.Adam(self.model.parameters(), lr=1e-3)

    def _run_batch(self, src, tgt):
        self.opt.zero_grad()
        out = self.model(src, tgt[:, :-1])
        loss = nn.functional.cross_entropy(out.flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0)
        loss.backward()
        self.opt.step()

    def train(self, epochs):
        for ep in range(epochs):
            for src, tgt in batches(ep, self.rank):
                self._run_batch(src.to(self.rank), tgt.to(self.rank))
            if self.rank == 0 and ep % self.save_every == 0:
                torch.save(self.model.module.state_dict(), "nmt.pt")


def main(rank, world_size, epochs, save_every):
    ddp_setup(rank, world_size)
    Trainer(Seq2Seq(), rank, save_every).train(epochs)
    dist.destroy_process_group()


if __name__ == "__main__":
    p = argparse.ArgumentParser()
    p.add_argument("epochs", type=int)
    p.add_argument("--save_every", type=int, default=1)
    a = p.parse_args()
    n = torch.cuda.device_count()
    mp.spawn(main, args=(n, a.epochs, a.save_every), nprocs=n)
