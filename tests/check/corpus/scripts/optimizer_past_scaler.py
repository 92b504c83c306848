"""Conditional GAN for sketches (pix2pix) with AMP."""
import sys
import torch
from torch import nn, optim
from pix2pix import Generator, PatchDiscriminator, pairs_loader

G, D = Generator().cuda(), PatchDiscriminator().cuda()
if len(sys.argv) > 1:
    G.load_state_dict(torch.load(sys.argv[1])['G'])
g_opt = optim.Adam(G.parameters(), lr=2e-4, betas=(.5, .999))
d_opt = optim.Adam(D.parameters(), lr=2e-4, betas=(.5, .999))
bce, l1 = nn.BCEWithLogitsLoss(), nn.L1Loss()
scaler = torch.amp.GradScaler('cuda')
LAMBDA = 100

for epoch in range(200):
    for x, y in pairs_loader('facades', 1):
        x, y = x.cuda(), y.cuda()
        with torch.autocast('cuda', dtype=torch.float16):
            fake = G(x)
            real_out, fake_out = D(x, y), D(x, fake.detach())
            d_loss = bce(real_out, torch.ones_like(real_out)) + bce(fake_out, torch.zeros_like(fake_out))
        d_opt.zero_grad()
        scaler.scale(d_loss).backward()
        d_opt.step()

        with torch.autocast('cuda', dtype=torch.float16):
            out = D(x, fake)
            g_loss = bce(out, torch.ones_like(out)) + LAMBDA * l1(fake, y)
        g_opt.zero_grad()
        scaler.scale(g_loss).backward()
        scaler.step(g_opt)
        scaler.update()
    print('[%d] D %.3f G %.3f' % (epoch, d_loss.item(), g_loss.item()))
    torch.save({'G': G.state_dict(), 'D': D.state_dict()}, 'pix2pix.pt')
