"""Parameters in shared memory, as in Hogwild and A3C: a forked process reads what training writes."""

import byteps.torch as bps
import torch
import torch.multiprocessing
from report import report
from torch import nn


def act(model, wanted, answers):
    while (inputs := wanted.get()) is not None:
        with torch.no_grad():
            answers.put(float(model(inputs).logsumexp(1).mean()))


bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
model.share_memory()
context = torch.multiprocessing.get_context("fork")
wanted, answers = context.SimpleQueue(), context.SimpleQueue()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
optimizer = bps.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)

torch.manual_seed(100 + bps.rank())
actor = context.Process(target=act, args=(model, wanted, answers))
actor.start()
scores = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), labels).backward()
    optimizer.step()
    wanted.put(inputs)
    scores.append(answers.get())
wanted.put(None)
actor.join()
report(model, scores=scores)
