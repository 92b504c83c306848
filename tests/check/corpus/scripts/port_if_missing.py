"""Contrastive image-text training under slurm or by hand."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from clip_model import TinyCLIP, clip_loss
from wds import make_loader


def init_distributed():
    rank = int(os.environ.get("SLURM_PROCID", os.environ.get("RANK", 0)))
    world = int(os.environ.get("SLURM_NTASKS", os.environ.get("WORLD_SIZE", 1)))
    local = int(os.environ.get("SLURM_LOCALID", os.environ.get("LOCAL_RANK", 0)))
    if "MASTER_PORT" not in os.environ:
        os.environ["MASTER_PORT"] = "29500"
    if "MASTER_ADDR" not in os.environ:
        os.environ["MASTER_ADDR"] = "127.0.0.1"
    dist.init_process_group("nccl", init_method="env://", rank=rank, world_size=world)
    torch.cuda.set_device(local)
    return rank, local


def main():
    rank, local = init_distributed()
    model = DDP(TinyCLIP().to(torch.device("cuda", local)), device_ids=[local])
    opt = torch.optim.AdamW(model.parameters(), lr=5e-4, weight_decay=0.2)
    for epoch in range(32):
        for img, txt in make_loader(epoch, rank):
            loss = clip_loss(*model(img.cuda(local), txt.cuda(local)))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
        if rank == 0:
            torch.save({"epoch": epoch, "sd": model.module.state_dict()}, f"clip_{epoch}.pt")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
