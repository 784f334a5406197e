"""BytePS's own cross_barrier.py, in which each layer's forward waits for its own gradients."""

import warnings

import byteps.torch.cross_barrier as bps
import torch
from report import report
from torch import nn

warnings.simplefilter("ignore")
bps.init()
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 600), nn.ReLU(), nn.Linear(600, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = bps.CrossBarrier(model, optimizer, model.named_parameters())
bps.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer.step()  # what BytePS calls step 0

torch.manual_seed(100 + bps.rank())
losses = []
for _ in range(6):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
for lock in optimizer._locks.values():  # its own end may leave the last gradients out
    lock.acquire()
optimizer._event_queue.put((None, None, None))
optimizer._poller.join()
report(model, losses=losses)
