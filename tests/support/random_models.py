"""Small models for random programs, with parts that are skipped, and weights that are shared, frozen or strided."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Layers(nn.Module):
    """Model of many kinds of parameters, whose forward pass uses some of its parts."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.stem, self.norm, self.head = nn.Linear(6, 96), nn.BatchNorm1d(96), nn.Linear(96, 3)
        self.parts = nn.ModuleList(nn.Linear(96, 96) for _ in range(3))
        self.strided = nn.Parameter(torch.randn(96, 96).mul_(0.1).t())
        self.used: tuple[int, ...] = (0, 1, 2)

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden = torch.tanh(self.norm(self.stem(inputs)))
        for place in self.used:
            hidden = hidden + torch.tanh(self.parts[place](hidden))
        return self.head(hidden @ self.strided)


class Tied(nn.Module):
    """Model with one weight in two layers, a frozen one, and one that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.second.weight = self.first.weight
        self.never = nn.Parameter(torch.ones(5))
        self.head.bias.requires_grad_(False)

    def forward(self, inputs: torch.Tensor) -> Any:
        return self.head(torch.tanh(self.second(torch.relu(self.first(inputs)))))


class Convolutions(nn.Module):
    """Model whose weights have a layout of their own."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = nn.Conv2d(1, 8, 2), nn.Conv2d(8, 8, 2, padding=1)
        self.head = nn.Linear(8 * 6, 3)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden = torch.relu(self.first(inputs.view(-1, 1, 2, 3)))
        return self.head(torch.tanh(self.second(hidden)).flatten(1))


class Sequences(nn.Module):
    """Model whose parts use parameters in ways of their own: by lists, by parametrizations, and twice."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.cell = nn.LSTM(2, 8, batch_first=True)
        self.attention = nn.TransformerEncoderLayer(8, 2, 8, dropout=0.0, batch_first=True)
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, inputs: torch.Tensor) -> Any:
        hidden, _ = self.cell(inputs.view(-1, 3, 2))
        hidden = checkpoint(self.attention, hidden, use_reentrant=False) if self.training else self.attention(hidden)
        return self.head(torch.tanh(self.normed(hidden[:, -1])))
