"""Fine-tune the UNet of a latent diffusion model on captioned pictures."""
import argparse

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from datasets import load_dataset
from diffusers import AutoencoderKL, DDPMScheduler, UNet2DConditionModel
from torchvision import transforms
from transformers import CLIPTextModel, CLIPTokenizer

ap = argparse.ArgumentParser()
ap.add_argument("--base", default="stable-diffusion-v1-5/stable-diffusion-v1-5")
ap.add_argument("--mixed_precision", default="fp16", choices=["no", "fp16", "bf16"])
ap.add_argument("--max_train_steps", type=int, default=15000)
args = ap.parse_args()

accelerator = Accelerator(gradient_accumulation_steps=4, mixed_precision=args.mixed_precision)
tokenizer = CLIPTokenizer.from_pretrained(args.base, subfolder="tokenizer")
text_encoder = CLIPTextModel.from_pretrained(args.base, subfolder="text_encoder")
vae = AutoencoderKL.from_pretrained(args.base, subfolder="vae")
unet = UNet2DConditionModel.from_pretrained(args.base, subfolder="unet")
noise_scheduler = DDPMScheduler.from_pretrained(args.base, subfolder="scheduler")

vae.requires_grad_(False)
text_encoder.requires_grad_(False)

weight_dtype = torch.float32
if accelerator.mixed_precision == "fp16":
    weight_dtype = torch.float16
elif accelerator.mixed_precision == "bf16":
    weight_dtype = torch.bfloat16
vae.to(accelerator.device, dtype=weight_dtype)
text_encoder.to(accelerator.device, dtype=weight_dtype)

tf = transforms.Compose([transforms.Resize(512), transforms.CenterCrop(512), transforms.ToTensor(),
                         transforms.Normalize([0.5], [0.5])])


def collate(rows):
    px = torch.stack([tf(r["image"].convert("RGB")) for r in rows])
    ids = tokenizer([r["text"] for r in rows], padding="max_length", truncation=True, return_tensors="pt").input_ids
    return {"pixel_values": px, "input_ids": ids}


data = load_dataset("lambdalabs/naruto-blip-captions", split="train")
loader = torch.utils.data.DataLoader(data, batch_size=2, shuffle=True, collate_fn=collate, num_workers=2)
optimizer = torch.optim.AdamW(unet.parameters(), lr=1e-5)
unet, optimizer, loader = accelerator.prepare(unet, optimizer, loader)

step = 0
while step < args.max_train_steps:
    for batch in loader:
        with accelerator.accumulate(unet):
            latents = vae.encode(batch["pixel_values"].to(weight_dtype)).latent_dist.sample() * vae.config.scaling_factor
            noise = torch.randn_like(latents)
            t = torch.randint(0, noise_scheduler.config.num_train_timesteps, (latents.shape[0],), device=latents.device)
            noisy = noise_scheduler.add_noise(latents, noise, t)
            cond = text_encoder(batch["input_ids"])[0]
            pred = unet(noisy, t, cond).sample
            loss = F.mse_loss(pred.float(), noise.float())
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(unet.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        step += 1
        if step % 500 == 0:
            accelerator.save_state(f"sd-naruto/checkpoint-{step}")
accelerator.unwrap_model(unet).save_pretrained("sd-naruto/unet")
