"""Linear probes on frozen DINOv2 features, several cards."""
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, transforms
from transformers import AutoModel

accelerator = Accelerator(mixed_precision="no", log_with=None)
tf = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224), transforms.ToTensor()])
train = datasets.ImageFolder("food101/train", tf)
loader = DataLoader(train, batch_size=256, shuffle=True, num_workers=8)

backbone = AutoModel.from_pretrained("facebook/dinov2-base")
backbone.requires_grad_(False)
backbone.half()
backbone.to(accelerator.device).eval()
probe = nn.Linear(768, len(train.classes))
opt = torch.optim.AdamW(probe.parameters(), lr=1e-3)
probe, opt, loader = accelerator.prepare(probe, opt, loader)

for epoch in range(5):
    for img, y in loader:
        with torch.no_grad():
            feat = backbone(img.half()).last_hidden_state[:, 0]
        loss = nn.functional.cross_entropy(probe(feat.float()), y)
        accelerator.backward(loss)
        opt.step()
        opt.zero_grad()
    accelerator.print(epoch, loss.item())
if accelerator.is_main_process:
    torch.save(accelerator.unwrap_model(probe).state_dict(), "probe.pt")
