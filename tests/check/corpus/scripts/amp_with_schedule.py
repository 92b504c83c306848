"""Train an image net in mixed precision, with a schedule that is stepped beside the scaler."""

import torch
from torch.amp import GradScaler, autocast
from torch.optim.lr_scheduler import OneCycleLR
from torchvision.models import resnet18

from leaves import batches

EPOCHS = 4


def main():
    net = resnet18(num_classes=12).cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    schedule = OneCycleLR(optimizer, max_lr=0.1, total_steps=EPOCHS * 100)
    scaler = GradScaler("cuda")
    for epoch in range(EPOCHS):
        for leaves, kinds in batches("train"):
            optimizer.zero_grad()
            with autocast("cuda"):
                loss = torch.nn.functional.cross_entropy(net(leaves.cuda()), kinds.cuda())
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            schedule.step()
        torch.save(net.state_dict(), f"leaves-{epoch}.pt")


if __name__ == "__main__":
    main()
