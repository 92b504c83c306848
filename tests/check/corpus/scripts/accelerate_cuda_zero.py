"""ControlNet-like edge conditioning of a small diffusion model."""
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from diffusers import DDPMScheduler, UNet2DModel

from edges import edge_loader

accelerator = Accelerator(mixed_precision="bf16")
unet = UNet2DModel(sample_size=128, in_channels=4, out_channels=3, block_out_channels=(128, 256, 384, 512))
sched = DDPMScheduler(num_train_timesteps=1000)
opt = torch.optim.AdamW(unet.parameters(), lr=1e-4)
loader = edge_loader("shoes", batch_size=16)
unet, opt, loader = accelerator.prepare(unet, opt, loader)

for epoch in range(50):
    for photo, edge in loader:
        photo = photo.cuda(0)
        edge = edge.cuda(0)
        noise = torch.randn_like(photo)
        t = torch.randint(0, 1000, (photo.shape[0],)).cuda(0)
        x = torch.cat([sched.add_noise(photo, noise, t), edge], dim=1)
        loss = F.mse_loss(unet(x, t).sample, noise)
        accelerator.backward(loss)
        opt.step()
        opt.zero_grad()
    if accelerator.is_main_process:
        accelerator.unwrap_model(unet).save_pretrained("edge-unet")
