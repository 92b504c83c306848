"""Train a text classifier head on features that another job wrote."""
import json
import pickle

import joblib
import numpy as np
import torch
from torch import nn
from safetensors.torch import load_file, save_file

X = np.load("features.npy")
with open("labels.pkl", "rb") as fh:
    y = pickle.load(fh)
with open("label_names.json") as fh:
    names = json.load(fh)
scaler = joblib.load("standard_scaler.joblib")

X = torch.from_numpy(scaler.transform(X)).float()
y = torch.as_tensor(y)
head = nn.Linear(X.shape[1], len(names))
try:
    head.load_state_dict(load_file("head.safetensors"))
except FileNotFoundError:
    print("no old head, starting from nothing")

optim = torch.optim.AdamW(head.parameters(), lr=1e-2, weight_decay=1e-3)
for step in range(2000):
    idx = torch.randint(len(X), (512,))
    loss = nn.functional.cross_entropy(head(X[idx]), y[idx])
    optim.zero_grad()
    loss.backward()
    optim.step()
    if step % 200 == 0:
        print(step, round(loss.item(), 4))

save_file(head.state_dict(), "head.safetensors")
