"""Begin the ranks."""

import os

import torch
import torch.distributed as dist


def begin(rank, ranks, port=12355):
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = str(port)
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
