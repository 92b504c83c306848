"""A short RLHF loop: REINFORCE with a learned baseline on a tiny GPT."""
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration
from torch.nn import functional as F

from policy import Baseline, TinyGPT, sample
from reward import score

STEPS, BATCH = 3000, 64


def main(ckpt="sft.pt"):
    acc = Accelerator(project_config=ProjectConfiguration(project_dir="rl", total_limit=3))
    policy, baseline = TinyGPT(), Baseline()
    policy.load_state_dict(torch.load(ckpt, weights_only=True))
    opt = torch.optim.Adam([*policy.parameters(), *baseline.parameters()], lr=1e-5)
    policy, baseline, opt = acc.prepare(policy, baseline, opt)
    for step in range(STEPS):
        with torch.no_grad():
            tokens = sample(acc.unwrap_model(policy), BATCH, device=acc.device)
            reward = score(tokens).to(acc.device)
        value = baseline(tokens)
        logp = F.log_softmax(policy(tokens[:, :-1]), -1).gather(-1, tokens[:, 1:, None]).squeeze(-1).sum(-1)
        adv = (reward - value).detach()
        loss = -(adv * logp).mean() + F.mse_loss(value, reward)
        acc.backward(loss)
        acc.clip_grad_norm_(policy.parameters(), 0.5)
        opt.step()
        opt.zero_grad()
        if step % 50 == 0:
            acc.print(step, reward.mean().item(), loss.item())
        if step % 500 == 499:
            acc.save_state(f"rl/step{step}")


main()
