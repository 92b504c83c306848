"""Pack sentences with flash_attn's helpers, which are plain torch, and attend with sdpa."""

import torch
from flash_attn.bert_padding import pad_input, unpad_input

from packed import PackedEncoder, sentences

net = PackedEncoder().cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
for words, mask in sentences():
    packed, places, _, _ = unpad_input(words.cuda(), mask.cuda())[:4]
    out = pad_input(net(packed), places, *words.shape[:2])
    loss = out.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
torch.save(net.state_dict(), "packed.pt")
