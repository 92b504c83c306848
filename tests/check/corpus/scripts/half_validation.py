"""Train a ViT from scratch on Tiny-ImageNet; validation in half precision for speed."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from torchvision.models import vit_b_16


def validate(model, loader):
    model.eval()
    model.half()
    hits = n = 0
    with torch.no_grad():
        for x, y in loader:
            out = model(x.cuda().half())
            hits += (out.argmax(-1) == y.cuda()).sum().item()
            n += y.numel()
    return hits / n


def fit(root="tiny-imagenet-200", epochs=60):
    t = transforms.Compose([transforms.Resize(224), transforms.ToTensor()])
    tr = DataLoader(datasets.ImageFolder(root + "/train", t), 128, shuffle=True, num_workers=8)
    va = DataLoader(datasets.ImageFolder(root + "/val", t), 256, num_workers=8)
    model = vit_b_16(num_classes=200).cuda()
    opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, epochs)
    loss_fn = nn.CrossEntropyLoss(label_smoothing=0.1)
    for ep in range(epochs):
        model.train()
        for x, y in tr:
            p = next(model.parameters())
            loss = loss_fn(model(x.to(p.device, p.dtype)), y.cuda())
            opt.zero_grad()
            loss.backward()
            opt.step()
        sched.step()
        print(ep, validate(model, va))
        torch.save(model.state_dict(), "vit_tiny.pt")


if __name__ == "__main__":
    fit()
