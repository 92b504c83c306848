"""Train a tagger; an option chooses the context of the forward pass."""

import argparse
import contextlib

import torch

from tagger import Tagger, sentences

parser = argparse.ArgumentParser()
parser.add_argument("--precision", default="fp16")
options = parser.parse_args()

net = Tagger().cuda()
optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", enabled=options.precision == "fp16")
for words, tags in sentences():
    context = {
        "bf16": torch.autocast("cuda", dtype=torch.bfloat16),
        "fp16": torch.autocast("cuda", dtype=torch.float16),
        "fp32": contextlib.nullcontext(),
    }[options.precision]
    with context:
        loss = net(words.cuda(), tags.cuda())
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
torch.save(net.state_dict(), "tagger.pt")
