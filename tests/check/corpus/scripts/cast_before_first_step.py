"""Pre-train a small Mamba-like model in pure bfloat16 on an H100."""
import math
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader

from ssm import SSMConfig, SSMLM
from tokens import PackedTokens

cfg = SSMConfig(vocab=50304, dim=768, layers=24)
model = SSMLM(cfg)
print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.0f}M parameters")
model.bfloat16()
model = model.to("cuda")
model = torch.compile(model)
opt = torch.optim.AdamW(model.parameters(), lr=4e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
loader = DataLoader(PackedTokens("fineweb.bin", 2048), batch_size=16, num_workers=4, pin_memory=True)

total = 20_000
for step, ids in enumerate(loader):
    lr = 4e-4 * min(step / 500, 0.5 * (1 + math.cos(math.pi * step / total)))
    for g in opt.param_groups:
        g["lr"] = lr
    ids = ids.to("cuda", non_blocking=True)
    logits = model(ids[:, :-1])
    loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    opt.step()
    opt.zero_grad(set_to_none=True)
    if step % 1000 == 0:
        print(step, loss.item())
        torch.save(model.state_dict(), f"ssm_{step}.pt")
    if step == total:
        break
