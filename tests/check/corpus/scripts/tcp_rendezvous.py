"""Video classification with R(2+1)D, eight cards of one server."""
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torchvision.models.video import r2plus1d_18

from clips import ClipFolder

INIT = "tcp://127.0.0.1:23456"


def main():
    rank = int(os.environ["LOCAL_RANK"])
    world = int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend="nccl", init_method=INIT, rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    model = r2plus1d_18(num_classes=101).cuda(rank)
    model = DDP(model, device_ids=[rank])
    ds = ClipFolder("ucf101", frames=16)
    sampler = torch.utils.data.distributed.DistributedSampler(ds, shuffle=True)
    loader = torch.utils.data.DataLoader(ds, 8, sampler=sampler, num_workers=6)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(45):
        sampler.set_epoch(epoch)
        for clip, label in loader:
            loss = torch.nn.functional.cross_entropy(model(clip.cuda(rank)), label.cuda(rank))
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
        if rank == 0:
            torch.save(model.module.state_dict(), f"r2p1d_{epoch}.pt")


if __name__ == "__main__":
    main()
