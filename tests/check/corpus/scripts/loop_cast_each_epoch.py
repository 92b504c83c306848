"""Speaker embeddings with a TDNN and a margin loss."""
import os

import torch
from torch import nn, optim

from speech import AAMSoftmax, TDNN, utterances


class Experiment:
    def __init__(self, speakers):
        self.model = TDNN(80, 192).cuda()
        self.head = AAMSoftmax(192, speakers).cuda()
        self.optim = optim.SGD(list(self.model.parameters()) + list(self.head.parameters()), lr=0.1, momentum=0.9)
        if os.path.exists("tdnn.pt"):
            self.model.load_state_dict(torch.load("tdnn.pt"))

    def train_epoch(self, loader):
        self.model.train()
        for feats, spk in loader:
            loss = self.head(self.model(feats.cuda()), spk.cuda())
            self.optim.zero_grad()
            loss.backward()
            self.optim.step()
        return loss.item()

    def run(self, epochs=15):
        for ep in range(epochs):
            print("epoch", ep, self.train_epoch(utterances("train", batch=64)))
            torch.save(self.model.state_dict(), "tdnn.pt")
            self.model = self.model.to(torch.bfloat16)
            embeds = [self.model(f.cuda().bfloat16()).float().cpu() for f, _ in utterances("dev", batch=64)]
            torch.save(torch.cat(embeds), f"dev_{ep}.pt")
            self.model = self.model.to(dtype=torch.float32)


Experiment(5994).run()
