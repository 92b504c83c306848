"""Train a painter in mixed precision against a critic in float32, whose loss is not scaled."""

import torch
from torch.amp import GradScaler, autocast

from paint import Critic, Painter, canvases, critic_loss, painter_loss

painter, critic = Painter().cuda(), Critic().cuda()
painting = torch.optim.Adam(painter.parameters(), lr=1e-4)
judging = torch.optim.Adam(critic.parameters(), lr=4e-4)
scaler = GradScaler("cuda")
for canvas in canvases():
    judging.zero_grad()
    critic_loss(critic, painter, canvas.cuda()).backward()
    judging.step()
    painting.zero_grad()
    with autocast("cuda"):
        loss = painter_loss(critic, painter, canvas.cuda())
    scaler.scale(loss).backward()
    scaler.step(painting)
    scaler.update()
torch.save(painter.state_dict(), "painter.pt")
