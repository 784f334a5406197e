"""Sparse gradients beside dense ones: with accumulation, clipping by value, and an optimizer for each."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 32, sparse=True)
        self.layers = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
        self.bags = nn.EmbeddingBag(50, 10, sparse=True)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.layers(self.words(words).mean(1)) + self.bags(words)


dist.init_process_group("gloo")
torch.manual_seed(1)
ddp = DistributedDataParallel(Model())
sparse = [*ddp.module.words.parameters(), *ddp.module.bags.parameters()]
optimizers = [
    torch.optim.SparseAdam(sparse, lr=1e-2),
    torch.optim.SGD(ddp.module.layers.parameters(), lr=0.1, momentum=0.9),
]
torch.manual_seed(100 + dist.get_rank())
losses, grads = [], []
for iteration in range(9):
    words, labels = torch.randint(50, (16, 5)), torch.randint(10, (16,))
    for optimizer in optimizers:
        optimizer.zero_grad()
    if iteration == 3:
        with ddp.no_sync():
            nn.functional.cross_entropy(ddp(words), labels).backward()
    loss = nn.functional.cross_entropy(ddp(words), labels)
    loss.backward()
    if iteration == 5:
        grads += [param.grad.to_dense() for param in ddp.parameters()]
        nn.utils.clip_grad_value_(ddp.module.layers.parameters(), 0.01)
    for optimizer in optimizers:
        optimizer.step()
    losses.append(loss.item())
report(ddp, grads=grads, losses=losses)
