"""Evolution strategies: several learners explore from one parent network, each in its own process."""
import multiprocessing as mp

import torch
from torch import nn

from envs import rollout


def make_net():
    return nn.Sequential(nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 4))


def learner(idx, state, queue):
    net = make_net().cuda()
    net.load_state_dict(state)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    for _ in range(20):
        obs, act, adv = rollout(net, seed=idx)
        logp = torch.log_softmax(net(obs.cuda()), -1).gather(1, act.cuda()[:, None]).squeeze(1)
        loss = -(logp * adv.cuda()).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    queue.put((adv.sum().item(), {k: v.cpu() for k, v in net.state_dict().items()}))


if __name__ == "__main__":
    parent = make_net().cuda()
    for generation in range(100):
        queue = mp.Queue()
        state = {k: v.cpu() for k, v in parent.state_dict().items()}
        procs = [mp.Process(target=learner, args=(i, state, queue)) for i in range(4)]
        for p in procs:
            p.start()
        best = max((queue.get() for _ in procs), key=lambda r: r[0])
        for p in procs:
            p.join()
        parent.load_state_dict(best[1])
        print(generation, best[0])
        torch.save(parent.state_dict(), "es_parent.pt")
