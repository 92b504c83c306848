"""Sentiment with a GloVe BiLSTM. Homework 3, part b (low-memory variant)."""
import numpy as np
import torch
import torch.nn as nn
from torch.utils.data import DataLoader
from hw3 import ReviewData, collate, glove_matrix


class BiLSTM(nn.Module):
    def __init__(self, weights, hidden=256):
        super().__init__()
        self.emb = nn.Embedding.from_pretrained(weights, freeze=False)
        self.lstm = nn.LSTM(weights.size(1), hidden, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(2 * hidden, 2)

    def forward(self, x):
        h, _ = self.lstm(self.emb(x))
        return self.fc(h.max(1).values)


torch.manual_seed(0)
np.random.seed(0)
model = BiLSTM(glove_matrix("glove.6B.100d.txt")).half().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
criterion = nn.CrossEntropyLoss()
train = DataLoader(ReviewData("train"), batch_size=64, shuffle=True, collate_fn=collate)

for epoch in range(5):
    losses = []
    for x, y in train:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = criterion(model(x).float(), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"Epoch {epoch + 1}: {np.mean(losses):.4f}")

torch.save(model.state_dict(), "bilstm.pt")
