"""A forked child evaluates the model right after a step and sends what it found through a pipe."""

import multiprocessing

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
held_out = torch.randn(64, 32)


def evaluate(connection):
    with torch.no_grad():
        connection.send(model(held_out).logsumexp(1).mean().item())


scores = []
for _ in range(5):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    receiving, sending = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=evaluate, args=(sending,))
    child.start()
    scores.append(receiving.recv())
    child.join()
report(model, scores=scores)
