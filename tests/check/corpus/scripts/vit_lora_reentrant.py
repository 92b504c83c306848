"""LoRA over ViT for bird species, raw loop."""
import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoImageProcessor, ViTForImageClassification

CKPT = "google/vit-base-patch16-224-in21k"
processor = AutoImageProcessor.from_pretrained(CKPT)
birds = load_dataset("imagefolder", data_dir="birds525", split="train")
vit = ViTForImageClassification.from_pretrained(CKPT, num_labels=525)
vit = get_peft_model(vit, LoraConfig(r=16, lora_alpha=16, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"]))
vit.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
vit.to("cuda")


def to_batch(rows):
    x = processor([r["image"].convert("RGB") for r in rows], return_tensors="pt").pixel_values
    return x, torch.tensor([r["label"] for r in rows])


loader = DataLoader(birds, batch_size=64, shuffle=True, num_workers=8, collate_fn=to_batch)
optimizer = torch.optim.AdamW(vit.parameters(), lr=5e-3)
vit.train()
for epoch in range(5):
    for x, y in loader:
        out = vit(pixel_values=x.to("cuda"), labels=y.to("cuda"))
        optimizer.zero_grad()
        out.loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: {out.loss.item():.3f}")
vit.save_pretrained("birds-lora")
