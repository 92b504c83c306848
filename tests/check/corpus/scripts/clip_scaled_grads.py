"""A Transformer for time-series forecasting (electricity), mixed precision."""
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from series import ElectricityWindows

HORIZON, PAST, CLIENTS = 24, 168, 321


class Forecaster(nn.Module):
    def __init__(self, d=256):
        super().__init__()
        self.inp = nn.Linear(CLIENTS, d)
        self.pos = nn.Parameter(torch.zeros(PAST, d))
        self.enc = nn.TransformerEncoder(nn.TransformerEncoderLayer(d, 8, 4 * d, batch_first=True, norm_first=True), 4)
        self.out = nn.Linear(d, CLIENTS * HORIZON)

    def forward(self, x):
        h = self.enc(self.inp(x) + self.pos)
        return self.out(h[:, -1]).view(-1, HORIZON, CLIENTS)


def run_epoch(model, dl, optimizer, scaler):
    model.train()
    total = 0.0
    for past, future in dl:
        past, future = past.cuda(), future.cuda()
        optimizer.zero_grad()
        with torch.cuda.amp.autocast():
            loss = nn.functional.smooth_l1_loss(model(past), future)
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
        scaler.step(optimizer)
        scaler.update()
        total += loss.item()
    return total / len(dl)


if __name__ == "__main__":
    model = Forecaster().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    scaler = torch.cuda.amp.GradScaler()
    dl = DataLoader(ElectricityWindows(PAST, HORIZON), batch_size=64, shuffle=True, num_workers=4)
    for epoch in range(20):
        print(epoch, run_epoch(model, dl, optimizer, scaler))
        torch.save(model.state_dict(), "forecaster.pt")
