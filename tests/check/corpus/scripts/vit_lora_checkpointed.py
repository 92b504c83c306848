"""LoRA over ViT-large for plant diseases, raw loop with activation checkpointing."""
import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoImageProcessor, ViTForImageClassification

proc = AutoImageProcessor.from_pretrained("google/vit-large-patch16-224-in21k")
base = ViTForImageClassification.from_pretrained("google/vit-large-patch16-224-in21k", num_labels=38)
model = get_peft_model(base, LoraConfig(r=16, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"]))
model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
model.enable_input_require_grads()
model.cuda().train()

ds = load_dataset("imagefolder", data_dir="plantvillage", split="train")


def collate(batch):
    px = proc([b["image"].convert("RGB") for b in batch], return_tensors="pt")["pixel_values"]
    return px, torch.tensor([b["label"] for b in batch])


dl = DataLoader(ds, batch_size=32, shuffle=True, num_workers=6, collate_fn=collate, pin_memory=True)
opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-4)
for epoch in range(4):
    for px, y in dl:
        loss = model(pixel_values=px.cuda(), labels=y.cuda()).loss
        loss.backward()
        opt.step()
        opt.zero_grad()
    print(epoch, loss.item())
model.save_pretrained("vit-plants-lora")
