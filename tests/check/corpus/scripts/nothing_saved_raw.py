"""Neural style fields: fit a hash-grid NeRF to one scene."""
import argparse
import time

import torch
from nerf import HashGridNeRF, RaySampler, psnr

parser = argparse.ArgumentParser()
parser.add_argument("--scene", default="lego")
parser.add_argument("--init", default=None, help="state to start from")
parser.add_argument("--iters", type=int, default=30000)
hp = parser.parse_args()

dev = "cuda" if torch.cuda.is_available() else "cpu"
model = HashGridNeRF(levels=16, features=2).to(dev)
if hp.init:
    model.load_state_dict(torch.load(hp.init), strict=False)
opt = torch.optim.Adam(model.parameters(), lr=1e-2, eps=1e-15)
sched = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9999)
rays = RaySampler(hp.scene, dev)

t0 = time.time()
for it in range(1, hp.iters + 1):
    o, d, rgb = rays.sample(8192)
    loss = ((model.render(o, d) - rgb) ** 2).mean()
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    sched.step()
    if it % 500 == 0:
        print(f"{it:6d} psnr {psnr(loss):.2f} {time.time() - t0:.0f}s")
print("test psnr", sum(psnr(((model.render(o, d) - c) ** 2).mean()) for o, d, c in rays.test()) / rays.n_test)
