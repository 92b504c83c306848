"""Federated-like averaging of a recommender on two cards."""
import os

import torch
import torch.distributed as dist

from recsys import NeuMF, interactions

os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": "29511"})
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl", rank=rank, world_size=world)

model = NeuMF(users=6040, items=3706, dim=32).cuda(local)
if os.path.exists("neumf.pt"):
    model.load_state_dict(torch.load("neumf.pt", weights_only=True))
opt = torch.optim.Adagrad(model.parameters(), lr=0.05)

for rnd in range(50):
    for u, i, y in interactions(rank, world, batch=4096):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(model(u.cuda(local), i.cuda(local)), y.cuda(local))
        opt.zero_grad()
        loss.backward()
        opt.step()
    with torch.no_grad():
        for p in model.parameters():
            dist.all_reduce(p.data)
            p.data /= world
    if rank == 0:
        print(rnd, loss.item())
        torch.save(model.state_dict(), "neumf.pt")
dist.destroy_process_group()
