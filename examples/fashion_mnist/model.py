"""A convolutional network for 28 × 28 grey images: two convolutions, one hidden layer, ten classes."""

from __future__ import annotations

import torch
from torch import nn


class Network(nn.Module):
    """Maps images as bytes of shape (batch, 1, 28, 28) to one score per class, (batch, 10)."""

    def __init__(self, hidden: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, kernel_size=3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Conv2d(8, 16, kernel_size=3, padding=1),
            nn.MaxPool2d(2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(16 * 7 * 7, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers((images.float() - 72.9) / 90.0)  # mean and standard deviation of the training set
