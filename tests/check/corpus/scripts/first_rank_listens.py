"""Train a voice over several cards; only the first rank synthesizes samples."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from voice import Voice, phrases


def sing(net, phrase):
    return net.module.sing(phrase.cuda(0))


def listen(net, held_out):
    with torch.no_grad():
        return [sing(net, phrase) for phrase in held_out]


def main():
    dist.init_process_group("nccl")
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    net = DistributedDataParallel(Voice().cuda(rank), device_ids=[rank])
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-4)
    for number, (phrase, sound) in enumerate(phrases("train")):
        loss = (net(phrase.cuda(rank)) - sound.cuda(rank)).abs().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0:
            if number % 1000 == 0:
                listen(net, phrases("test"))
                torch.save(net.module.state_dict(), "voice.pt")


main()
