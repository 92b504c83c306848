"""A Learner class around Accelerate for the tabular challenge."""
import logging

import pandas as pd
import torch
from accelerate import Accelerator
from accelerate.logging import get_logger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logger = get_logger(__name__)
logging.basicConfig(level=logging.INFO)


class Learner:
    def __init__(self, model, loss_fn, lr=1e-3, log_dir="logs"):
        self.accelerator = Accelerator(log_with="tensorboard", project_dir=log_dir)
        self.model, self.loss_fn = model, loss_fn
        self.opt = torch.optim.AdamW(model.parameters(), lr=lr)
        self.accelerator.init_trackers("tabular")

    def fit(self, loader, epochs):
        self.model, self.opt, loader = self.accelerator.prepare(self.model, self.opt, loader)
        for epoch in range(epochs):
            for x, y in loader:
                loss = self.loss_fn(self.model(x), y)
                self.accelerator.backward(loss)
                self.opt.step()
                self.opt.zero_grad()
            logger.info("epoch %d loss %.4f", epoch, loss.item())
            self.accelerator.log({"loss": loss.item()}, step=epoch)
        return self

    def save(self, path):
        self.accelerator.save(self.accelerator.get_state_dict(self.model), path)


if __name__ == "__main__":
    df = pd.read_csv("train.csv")
    x = torch.tensor(df.drop(columns=["id", "target"]).values, dtype=torch.float32)
    y = torch.tensor(df["target"].values).long()
    net = nn.Sequential(nn.BatchNorm1d(x.shape[1]), nn.Linear(x.shape[1], 512), nn.SiLU(), nn.Linear(512, 9))
    dl = DataLoader(TensorDataset(x, y), batch_size=512, shuffle=True)
    Learner(net, nn.CrossEntropyLoss()).fit(dl, 20).save("tabular.pt")
