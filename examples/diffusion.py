"""A small DDPM (Ho et al., 2020) on the 8 x 8 digits of scikit-learn: learn the noise that was added."""

import torch
from sklearn.datasets import load_digits
from torch import nn

STEPS = 200
KEPT = torch.cumprod(1 - torch.linspace(1e-4, 0.05, STEPS), 0)


class Denoiser(nn.Module):
    def __init__(self, width=128, layers=4):
        super().__init__()
        self.enter, self.time = nn.Linear(64, width), nn.Embedding(STEPS, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(layers)
        )
        self.leave = nn.Linear(width, 64)

    def forward(self, image):
        t = torch.randint(0, STEPS, (len(image),), device=image.device)
        noise, kept = torch.randn_like(image), KEPT.to(image)[t].unsqueeze(1)
        x = self.enter(kept.sqrt() * image + (1 - kept).sqrt() * noise) + self.time(t)
        for layer in self.layers:
            x = x + layer(x)
        return nn.functional.mse_loss(self.leave(x).float(), noise.float())


def build_model():
    return Denoiser()


def build_dataset():
    return torch.tensor(load_digits().data).float() / 8 - 1
