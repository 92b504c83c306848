"""Prompt-tune-like training of soft embeddings for a model spread over two cards (one process)."""
import torch
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer

NAME = "EleutherAI/gpt-neox-20b"
tok = AutoTokenizer.from_pretrained(NAME)
lm = AutoModelForCausalLM.from_pretrained(NAME, dtype=torch.float16, device_map="auto")
lm.requires_grad_(False)
emb = lm.get_input_embeddings()

soft = nn.Parameter(torch.randn(20, emb.weight.shape[1], device=emb.weight.device) * 0.01)
opt = torch.optim.AdamW([soft], lr=3e-3)
pairs = [line.rstrip("\n").split("\t") for line in open("qa.tsv", encoding="utf8")]

for epoch in range(3):
    for q, a in pairs:
        ids = tok(q + "\n" + a, return_tensors="pt").input_ids.to(emb.weight.device)
        n_q = len(tok(q + "\n").input_ids)
        x = torch.cat([soft.to(emb.weight.dtype)[None], emb(ids)], 1)
        labels = torch.full(x.shape[:2], -100, device=ids.device)
        labels[:, 20 + n_q:] = ids[:, n_q:]
        loss = lm(inputs_embeds=x, labels=labels).loss
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
torch.save(soft.detach().cpu(), "soft_prompt.pt")
