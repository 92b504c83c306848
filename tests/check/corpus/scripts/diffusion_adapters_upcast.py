"""Tune adapters of a half-precision UNet; what is trained is made float32."""

import torch
from accelerate import Accelerator
from diffusers import UNet2DConditionModel
from diffusers.training_utils import cast_training_params
from peft import LoraConfig

from sketches import noise_loss, sketches

accelerator = Accelerator(mixed_precision="fp16")
unet = UNet2DConditionModel.from_pretrained("stabilityai/stable-diffusion-2-1", subfolder="unet")
unet.requires_grad_(False)
unet.to(accelerator.device, dtype=torch.float16)
unet.add_adapter(LoraConfig(r=8, target_modules=["to_k", "to_q", "to_v"]))
cast_training_params(unet, dtype=torch.float32)
optimizer = torch.optim.AdamW([one for one in unet.parameters() if one.requires_grad], lr=1e-4)
unet, optimizer = accelerator.prepare(unet, optimizer)
for sketch in sketches():
    accelerator.backward(noise_loss(unet, sketch))
    optimizer.step()
    optimizer.zero_grad()
accelerator.save_state("sketches")
