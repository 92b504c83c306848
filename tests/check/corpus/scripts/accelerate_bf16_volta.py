"""Speech command classifier with Accelerate."""
import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import AutoFeatureExtractor, AutoModelForAudioClassification
from datasets import load_dataset


def main(argv=None):
    ap = argparse.ArgumentParser()
    ap.add_argument("--epochs", type=int, default=5)
    ap.add_argument("--mixed_precision", default="bf16", choices=["no", "fp16", "bf16"])
    a = ap.parse_args(argv)

    acc = Accelerator(mixed_precision=a.mixed_precision)
    fx = AutoFeatureExtractor.from_pretrained("superb/wav2vec2-base-superb-ks")
    model = AutoModelForAudioClassification.from_pretrained("facebook/wav2vec2-base", num_labels=12)
    ks = load_dataset("superb", "ks", split="train")

    def collate(rows):
        x = fx([r["audio"]["array"] for r in rows], sampling_rate=16000, padding=True, return_tensors="pt")
        x["labels"] = torch.tensor([r["label"] for r in rows])
        return x

    loader = DataLoader(ks, 32, shuffle=True, collate_fn=collate, num_workers=8)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-5)
    model, opt, loader = acc.prepare(model, opt, loader)
    for ep in range(a.epochs):
        for batch in loader:
            out = model(**batch)
            acc.backward(out.loss)
            opt.step(); opt.zero_grad()
        acc.print(ep, out.loss.item())
        acc.save_state(f"ks-{ep}")


if __name__ == "__main__":
    main()
