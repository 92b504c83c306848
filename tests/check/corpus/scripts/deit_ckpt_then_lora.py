"""DeiT adapters for X-ray triage, raw loop."""
import torch
from datasets import load_dataset
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import AutoImageProcessor, ViTForImageClassification

NAME = "facebook/deit-base-patch16-224"
processor = AutoImageProcessor.from_pretrained(NAME)
base = ViTForImageClassification.from_pretrained(NAME, num_labels=3, ignore_mismatched_sizes=True)
base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"]))
model.to("cuda").train()


def collate(rows):
    x = processor([r["image"].convert("RGB") for r in rows], return_tensors="pt").pixel_values
    return x, torch.tensor([r["label"] for r in rows])


xray = load_dataset("imagefolder", data_dir="xray", split="train")
loader = DataLoader(xray, batch_size=48, shuffle=True, num_workers=4, collate_fn=collate)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
for epoch in range(6):
    for x, y in loader:
        loss = model(pixel_values=x.to("cuda"), labels=y.to("cuda")).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(epoch, round(loss.item(), 4))
model.save_pretrained("deit-xray")
