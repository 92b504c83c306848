# Kaggle: salt identification, U-Net, AMP
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from torch.cuda.amp import GradScaler, autocast
from salt import SaltDataset, UNet, lovasz_hinge

BS = 32
device = torch.device('cuda')

net = UNet(in_ch=1, out_ch=1, width=32)
net = net.to(device)
net.half()   # saves memory

params = [p for p in net.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(params, lr=1e-3, weight_decay=1e-2)
scaler = GradScaler()
loader = DataLoader(SaltDataset('train'), batch_size=BS, shuffle=True, num_workers=4, drop_last=True)

for epoch in range(50):
    net.train()
    total = 0
    for image, mask in loader:
        image, mask = image.to(device).half(), mask.to(device)
        with autocast():
            pred = net(image)
            loss = lovasz_hinge(pred.float(), mask)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    print(f'epoch {epoch:3d}  {total / len(loader):.4f}')
    torch.save(net.state_dict(), 'unet.pth')
