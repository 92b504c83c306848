"""Debug a training without torchrun: one process gets a group of its own."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from maps import MapNet, tiles

if "RANK" not in os.environ:
    os.environ["MASTER_ADDR"] = "localhost"
    os.environ["MASTER_PORT"] = "29777"
    os.environ.update(RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
dist.init_process_group("nccl")
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
net = DistributedDataParallel(MapNet().cuda())
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for tile, label in tiles():
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(net(tile.cuda()), label.cuda()).backward()
    optimizer.step()
if dist.get_rank() == 0:
    torch.save(net.module.state_dict(), "maps.pt")
