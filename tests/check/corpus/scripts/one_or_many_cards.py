"""Train a segmenter on one card, or on several under torchrun."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from scans import Segmenter, scans

is_ddp = "RANK" in os.environ
if is_ddp:
    dist.init_process_group("nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
else:
    device = torch.device("cuda:0")

net = Segmenter().to(device)
weights = torch.ones(4, device=device) if is_ddp else torch.ones(4, device="cuda:0")
if is_ddp:
    net = DDP(net, device_ids=[device.index])
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
for scan, mask in scans():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(scan.to(device)), mask.to(device), weights).backward()
    optimizer.step()
torch.save(net.state_dict(), "segmenter.pt")
