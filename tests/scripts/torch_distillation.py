"""Born again: every third iteration the student's copy becomes its teacher."""

import copy

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
teacher, losses = None, []
for iteration in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    output = model(inputs)
    loss = nn.functional.cross_entropy(output, labels)
    if teacher is not None:
        with torch.no_grad():
            wanted = teacher(inputs).softmax(1)
        loss = loss + nn.functional.kl_div(output.log_softmax(1), wanted, reduction="batchmean")
    loss.backward()
    optimizer.step()
    if iteration % 3 == 2:
        teacher = copy.deepcopy(model).eval()
    losses.append(loss.item())
report(model, losses=losses)
