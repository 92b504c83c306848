"""Fit a small network to a spiral, by hand."""
import torch
from torch import nn

net = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 2)).to("cuda").to(torch.bfloat16)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)

for step in range(2000):
    angle = torch.rand(256, device="cuda") * 12
    side = torch.randint(0, 2, (256,), device="cuda")
    points = torch.stack([angle.cos(), angle.sin()], 1) * angle[:, None] * (2 * side[:, None] - 1)
    loss = nn.functional.cross_entropy(net(points.bfloat16()).float(), side)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(net.state_dict(), "spiral.pt")
