"""Continued training of a small LM on chess games, without mixed precision."""
import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel

from games import GameDataset


def make_model():
    cfg = GPT2Config(vocab_size=1024, n_positions=256, n_layer=8, n_head=8, n_embd=512)
    net = GPT2LMHeadModel(cfg)
    return net.to(torch.float16)


def main():
    accelerator = Accelerator(mixed_precision="no")
    model = make_model()
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    loader = DataLoader(GameDataset("games.bin", 256), batch_size=64, shuffle=True, num_workers=4)
    model, opt, loader = accelerator.prepare(model, opt, loader)
    for epoch in range(3):
        for i, ids in enumerate(loader):
            loss = model(input_ids=ids, labels=ids).loss
            accelerator.backward(loss)
            opt.step()
            opt.zero_grad(set_to_none=True)
            if i % 100 == 0:
                accelerator.print(epoch, i, loss.item())
        accelerator.save_model(model, f"chess-{epoch}")


if __name__ == "__main__":
    main()
