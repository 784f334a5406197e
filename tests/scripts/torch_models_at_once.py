"""Several models trained at once: by one thread, in another order on each worker, and by a thread for each."""

import threading

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()


class Training:
    """A model with random numbers of its own."""

    def __init__(self, name, width):
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(32, width), nn.Tanh(), nn.Linear(width, 100))
        named = [(f"{name}.{each}", param) for each, param in self.model.named_parameters()]
        self.optimizer = bps.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=0.1), named_parameters=named
        )
        self.random = torch.Generator().manual_seed(100 + bps.rank())
        self.losses = []

    def backward(self):
        self.optimizer.zero_grad()
        inputs = torch.randn(16, 32, generator=self.random)
        labels = torch.randint(100, (16,), generator=self.random)
        loss = nn.functional.cross_entropy(self.model(inputs), labels)
        loss.backward()
        self.losses.append(loss.item())

    def train(self):
        for _ in range(4):
            self.backward()
            self.optimizer.step()


tasks = [Training("first", 64), Training("second", 96)]
for _ in range(4):
    for task in tasks if bps.rank() == 0 else tasks[::-1]:
        task.backward()
    for task in tasks:
        task.optimizer.step()

actors = [Training(f"actor{number}", 400) for number in range(3)]
threads = [threading.Thread(target=actor.train) for actor in actors]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
trained = [*tasks, *actors]
report([each.model for each in trained], losses=[each.losses for each in trained])
