"""Score every saved epoch of the VQA model on the dev set."""
import glob
import os

import torch

from vqa import VQAModel, dev_loader


@torch.no_grad()
def accuracy(model, loader, device):
    model.eval()
    right = n = 0
    for img, question, answer in loader:
        pred = model(img.to(device), question.to(device)).argmax(-1).cpu()
        right += (pred == answer).sum().item()
        n += len(answer)
    return right / n


def main():
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = dev_loader(batch_size=128)
    model = VQAModel(answers=3129).to(device)
    best = (0.0, None)
    for path in sorted(glob.glob("checkpoints/*.pth"), key=os.path.getmtime):
        with open(path, "rb") as fh:
            state = torch.load(fh, weights_only=False)
        model.load_state_dict(state["model"] if "model" in state else state)
        acc = accuracy(model, loader, device)
        print(f"{os.path.basename(path):30s} {acc:.4f}")
        best = max(best, (acc, path))
    print("best:", best)


if __name__ == "__main__":
    main()
