"""Trains a small transformer on made-up text: real compute, with the usual parts of such jobs.

Rule of this file: an ordinary training script. It uses AdamW without weight decay for norms and biases, a learning rate
that rises and then falls, and clipping by the norm of all gradients, so that every update waits for every average. Each
worker has its own sentences. With one seed and up to two workers, the final weights are bitwise the same in every run.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from prophet_scheduler.engines.exchange import TorchJobExchange
from prophet_scheduler.lab.job_config import TransformerJob
from prophet_scheduler.lab.jobs.common import Recorder
from prophet_scheduler.lab.jobs.datasets import text
from prophet_scheduler.lab.jobs.pytorch.training import accuracy, run, train

LENGTH = 32
"""Number of input words per sentence; the model predicts the next word after each."""
SHAPES = {"small": (2, 128, 256), "medium": (4, 256, 1000)}
"""(layers, width, vocabulary)."""
LEARNING_RATE, RISING = 0.003, 10
"""Peak learning rate, and the number of iterations in which it rises."""
WEIGHT_DECAY = 0.01
TEST_SENTENCES = 64
TEST_SEED = 1_000_000
"""Seed of text that no worker trains on."""


class EncoderLayer(nn.TransformerEncoderLayer):
    """Layer with its own `forward`, because torch.compile skips modules that use torch's."""

    def forward(self, src: torch.Tensor, *masks: Any, **options: Any) -> torch.Tensor:
        return super().forward(src, *masks, **options)


class Transformer(nn.Module):
    """Decoder that predicts the next word: `small` (1.9 MB) or `medium` (14.7 MB), for words of shape [n, LENGTH].

    Vaswani et al., "Attention Is All You Need", NeurIPS 2017, with learned positions and with norms before each part
    instead of after it, as Xiong et al. (ICML 2020) recommend. No dropout.
    """

    def __init__(self, layers: int, width: int, vocabulary: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(LENGTH, width)
        layer = EncoderLayer(width, width // 32, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.words(words) + self.places(torch.arange(LENGTH))
        said: torch.Tensor = self.head(self.layers(hidden, mask=self.get_buffer("mask"), is_causal=True))
        return said


def make_model(kind: str) -> Transformer:
    return Transformer(*SHAPES[kind])


def compile_model(model: Transformer, what: str) -> None:
    """Apply torch.compile to each layer (`blocks`), to the whole model (`whole`), or not at all (`no`)."""
    if what == "whole":
        model.compile()
    elif what == "blocks":
        for layer in model.layers.layers:
            layer.compile()


def make_optimizer(model: nn.Module, learning_rate: float = LEARNING_RATE) -> torch.optim.Optimizer:
    """Return AdamW without weight decay for norms and biases."""
    decayed = [param for param in model.parameters() if param.dim() > 1]
    others = [param for param in model.parameters() if param.dim() <= 1]
    groups = [{"params": decayed, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=learning_rate)


def rate_of(step: int) -> float:
    """Return the share of the peak learning rate at a step, from 0 (Vaswani et al. 2017, section 5.3)."""
    number = step + 1
    return min(number / RISING, math.sqrt(RISING / number))


def loss_of(model: nn.Module, sentences: torch.Tensor) -> torch.Tensor:
    """Return the loss of sentences [n, LENGTH + 1]."""
    said = model(sentences[:, :-1])
    return nn.functional.cross_entropy(said.flatten(0, 1), sentences[:, 1:].flatten())


def job(spec: TransformerJob, exchange: TorchJobExchange, recorder: Recorder) -> tuple[Transformer, float]:
    vocabulary = SHAPES[spec.model][2]
    seed = (spec.seed * exchange.size + exchange.rank) * spec.iterations
    torch.manual_seed(spec.seed)
    model = make_model(spec.model)
    compile_model(model, spec.compile)

    def loss(called: nn.Module, iteration: int) -> torch.Tensor:
        return loss_of(called, torch.from_numpy(text(spec.batch_size, LENGTH + 1, vocabulary, seed + iteration)))

    def schedule_of(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, rate_of)

    optimizer = make_optimizer(model)
    train(spec, exchange, recorder, model, optimizer, loss, spec.clip_norm, schedule_of)
    sentences = torch.from_numpy(text(TEST_SENTENCES, LENGTH + 1, vocabulary, TEST_SEED))
    return model, accuracy(model, sentences[:, :-1], sentences[:, 1:])


if __name__ == "__main__":
    run(__doc__, job)
