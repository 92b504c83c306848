"""Colourisation U-Net, Accelerate; reports the memory of each rank."""
import torch
import torch.nn.functional as F
from accelerate import Accelerator, DistributedDataParallelKwargs

from colour import UNet, lab_loader

accelerator = Accelerator(
    mixed_precision="fp16",
    kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
)
device = accelerator.device
on_cuda = device.type == "cuda"
if on_cuda:
    torch.backends.cudnn.benchmark = True

net = UNet(1, 2)
opt = torch.optim.AdamW(net.parameters(), lr=2e-4)
loader = lab_loader("coco", batch_size=32, workers=4)
net, opt, loader = accelerator.prepare(net, opt, loader)
vgg_mean = torch.tensor([0.45], device=device)

for epoch in range(12):
    for light, ab in loader:
        light = light.to(device) - vgg_mean
        out = net(light)
        with torch.autocast("cuda", enabled=False):
            loss = F.smooth_l1_loss(out.float(), ab.to(device))
        accelerator.backward(loss)
        accelerator.clip_grad_value_(net.parameters(), 0.5)
        opt.step()
        opt.zero_grad()
    if on_cuda:
        print(accelerator.process_index, torch.cuda.max_memory_allocated() >> 20, "MiB")
    accelerator.save_state(f"colour/{epoch}")
