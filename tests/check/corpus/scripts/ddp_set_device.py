"""torchrun --nproc_per_node=4 ddp_set_device.py : ResNet-50 on ImageNet folders."""
import os
import time

import torch
import torch.distributed as dist
import torchvision
from torch.nn.parallel import DistributedDataParallel
from torchvision import transforms

DATA = os.environ.get("IMAGENET", "/data/imagenet")


def main():
    dist.init_process_group(backend="nccl")
    local_rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local_rank)

    model = torchvision.models.resnet50().cuda()
    model = DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    criterion = torch.nn.CrossEntropyLoss().cuda()

    ds = torchvision.datasets.ImageFolder(
        os.path.join(DATA, "train"),
        transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(), transforms.ToTensor()]),
    )
    sampler = torch.utils.data.distributed.DistributedSampler(ds)
    loader = torch.utils.data.DataLoader(ds, 128, sampler=sampler, num_workers=8, pin_memory=True)

    for epoch in range(90):
        sampler.set_epoch(epoch)
        t0 = time.time()
        for images, target in loader:
            images = images.cuda(non_blocking=True)
            target = target.cuda(non_blocking=True)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device_type="cuda", dtype=torch.float16):
                loss = criterion(model(images), target)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        if dist.get_rank() == 0:
            print(f"epoch {epoch} {time.time() - t0:.0f}s loss {loss.item():.3f}")
            torch.save(model.module.state_dict(), "resnet50.pth")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
