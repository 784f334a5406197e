"""A static graph, and a hook of the user's own that is registered after some steps."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model, static_graph=True)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)


def signs(state, bucket):
    future = dist.all_reduce(bucket.buffer().sign_(), async_op=True).get_future()
    return future.then(lambda future: future.value()[0] / dist.get_world_size())


torch.manual_seed(100 + dist.get_rank())
losses = []
for iteration in range(8):
    inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
    if iteration == 4:
        ddp.register_comm_hook(None, signs)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(ddp(inputs), labels)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
report(ddp, state=optimizer.state_dict(), losses=losses)
