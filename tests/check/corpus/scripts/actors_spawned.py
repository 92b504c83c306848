"""A3C-like agents on Pong: shared network, several actor processes."""
import torch
import torch.multiprocessing as mp
from torch import nn

from pong import episodes


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6400, 200), nn.ReLU())
        self.pi, self.v = nn.Linear(200, 6), nn.Linear(200, 1)

    def forward(self, x):
        h = self.body(x)
        return self.pi(h), self.v(h).squeeze(-1)


def actor(idx, shared, lock):
    torch.manual_seed(idx)
    opt = torch.optim.RMSprop(shared.parameters(), lr=1e-4)
    for obs, act, ret in episodes(shared, n=1000):
        logits, value = shared(obs.cuda())
        adv = ret.cuda() - value
        logp = torch.log_softmax(logits, -1).gather(1, act.cuda()[:, None]).squeeze(1)
        loss = -(logp * adv.detach()).mean() + 0.5 * adv.pow(2).mean()
        with lock:
            opt.zero_grad()
            loss.backward()
            opt.step()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    net = Policy().cuda()
    net.share_memory()
    lock = mp.Lock()
    ps = [mp.Process(target=actor, args=(i, net, lock)) for i in range(6)]
    [p.start() for p in ps]
    [p.join() for p in ps]
    torch.save(net.state_dict(), "pong.pt")
