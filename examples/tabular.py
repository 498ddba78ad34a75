"""A regression on the diabetes table of scikit-learn: 442 people, 10 measurements, one figure a year later."""

import torch
from sklearn.datasets import load_diabetes
from torch import nn
from torch.utils.data import TensorDataset


class Regression(nn.Module):
    def __init__(self, width=64, layers=3):
        super().__init__()
        self.enter = nn.Linear(10, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.SiLU()) for _ in range(layers))
        self.leave = nn.Linear(width, 1)

    def forward(self, x, target):
        x = self.enter(x)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.mse_loss(self.leave(x).squeeze(-1), target)


def build_model():
    return Regression()


def build_dataset():
    table = load_diabetes()
    target = (table.target - table.target.mean()) / table.target.std()
    return TensorDataset(torch.tensor(table.data * 20).float(), torch.tensor(target).float())


def build_optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.02, momentum=0.9)
