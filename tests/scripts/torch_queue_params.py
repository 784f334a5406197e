"""An actor that was forked before BytePS started gets the parameters through torch's queue after each step."""

import byteps.torch as bps
import torch
import torch.multiprocessing
from report import report
from torch import nn


def act(tasks, answers):
    while (params := tasks.get()) is not None:
        answers.put([float(p.detach().double().sum()) for p in params])


context = torch.multiprocessing.get_context("fork")
tasks, answers = context.SimpleQueue(), context.SimpleQueue()
actor = context.Process(target=act, args=(tasks, answers))
actor.start()


bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
params = list(model.parameters())
sums = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    tasks.put(params)
    sums.append(answers.get())
tasks.put(None)
actor.join()
report(model, sums=sums)
