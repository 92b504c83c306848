"""A mean teacher inside the module: nobody trains it, and each step moves it towards the student."""

import copy

import launcher_worker as worker
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from trainings.shared import assert_falls, blobs, fit, mlp, trainables


class MeanTeacher(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = mlp()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, points: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.student(points), self.teacher(points)

    @torch.no_grad()
    def follow(self, share: float) -> None:
        for mine, theirs in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
            mine.lerp_(theirs, share)


def train() -> None:
    model = worker.prepare(MeanTeacher())
    points, labels = blobs()
    optimizer = torch.optim.AdamW(trainables(model), lr=3e-2)

    def loss_of(_step: int) -> torch.Tensor:
        model.follow(0.5)
        student, teacher = model(points + 0.1 * torch.randn_like(points))
        return cross_entropy(student, labels) + mse_loss(student.float(), teacher.float())

    assert_falls(fit(optimizer, loss_of))
