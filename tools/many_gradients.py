"""A training script for maintainers' jobs, with a given number and size of gradients.

    many_gradients.py GRADIENTS BYTES ITERATIONS

Rule of this file: an ordinary PyTorch program with BytePS, which knows nothing of Prophet. It prints its progress:
`connected` after a first sum over all workers, `iteration N`, and finally `weights` with their digest. Initial weights
are zeros, so they need no broadcast, which sends one tensor at a time.
"""

from __future__ import annotations

import hashlib
import sys

import byteps.torch as bps
import torch


class SmallLayer(torch.nn.Module):
    """Layer with one gradient. Adds the sum of its weights to its input."""

    def __init__(self, elements: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(elements))

    def forward(self, flow: torch.Tensor) -> torch.Tensor:
        return flow + self.weight.sum()


def main() -> None:
    gradients, size_bytes, iterations = map(int, sys.argv[1:])
    torch.set_num_threads(1)
    bps.init()
    bps.push_pull(torch.ones(1), name="connected")
    print("connected", flush=True)
    model = torch.nn.Sequential(*(SmallLayer(size_bytes // 4) for _ in range(gradients)))
    optimizer = bps.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=2.0**-10), named_parameters=model.named_parameters()
    )
    for iteration in range(iterations):
        optimizer.zero_grad()
        # Each worker has another gradient, so a wrong sum changes the weights.
        (model(torch.zeros(1)) * (1.0 + bps.rank())).sum().backward()
        optimizer.step()
        print("iteration", iteration + 1, flush=True)
    digest = hashlib.sha256()
    for value in model.state_dict().values():
        digest.update(value.numpy().tobytes())
    print("weights", digest.hexdigest(), flush=True)


if __name__ == "__main__":
    main()
