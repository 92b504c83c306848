"""A graph network for molecule energies, raw loop."""
import torch
from torch import nn
from torch_geometric.datasets import QM9
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_add_pool


class Net(nn.Module):
    def __init__(self, d=128, layers=4):
        super().__init__()
        self.node, self.edge = nn.Linear(11, d), nn.Linear(4, d)
        self.convs = nn.ModuleList(
            GINEConv(nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, d))) for _ in range(layers)
        )
        self.out = nn.Linear(d, 1)

    def forward(self, b):
        x, e = self.node(b.x), self.edge(b.edge_attr)
        for c in self.convs:
            x = x + c(x, b.edge_index, e)
        return self.out(global_add_pool(x, b.batch)).squeeze(-1)


amp_dtype = torch.bfloat16
ds = QM9("qm9").shuffle()
loader = DataLoader(ds[:110000], batch_size=256, shuffle=True, num_workers=4)
model = Net().cuda()
opt = torch.optim.Adam(model.parameters(), lr=5e-4)
for epoch in range(100):
    for batch in loader:
        batch = batch.to("cuda")
        with torch.autocast(device_type="cuda", dtype=amp_dtype):
            loss = nn.functional.l1_loss(model(batch), batch.y[:, 7])
        opt.zero_grad()
        loss.backward()
        opt.step()
    print(epoch, loss.item())
    torch.save(model.state_dict(), "gine_qm9.pt")
