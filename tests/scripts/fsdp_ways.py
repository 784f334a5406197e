"""Less usual ways: two modules as one group, frozen parameters, a forward method of another name, unused parameters,
an exception in forward, an evaluation in inference mode, the meta device, and hooks of FSDP2 that the program sets.
"""

import averaging  # noqa: F401
import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

dist.init_process_group("gloo")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(40, 40), nn.Linear(40, 40)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 40)) for _ in range(3))
        self.seldom = nn.Linear(40, 40)
        self.head = nn.Linear(40, 7)

    def forward(self, inputs, fails=False, seldom=False):
        values = self.second(self.first(inputs).relu())
        for block in self.blocks:
            values = values + block(values)
            if fails:
                raise ValueError("this batch is bad")
        return self.head(self.seldom(values) if seldom else values)

    def score(self, inputs):
        return self(inputs).logsumexp(1).mean()


with torch.device("meta"):
    model = Model()
for block in model.blocks:
    block[0].weight.requires_grad_(False)
    fully_shard(block)
fully_shard([model.first, model.second])
fully_shard(model.seldom)
fully_shard(model)
model.to_empty(device="cpu")
torch.manual_seed(1)
for param in model.parameters():
    nn.init.normal_(param, std=0.2)
register_fsdp_forward_method(model, "score")
model.seldom.set_reduce_scatter_unused_params(True)
model.blocks[1].set_separate_reduce_scatter_group()
model.blocks[2].set_allocate_memory_from_process_group_for_comm(True)
model.set_reduce_scatter_max_input_buffers(2)
optimizer = torch.optim.AdamW([param for param in model.parameters() if param.requires_grad], lr=1e-2)

torch.manual_seed(100 + dist.get_rank())
losses, seen = [], []
for iteration in range(8):
    inputs, labels = torch.randn(8, 40), torch.randint(7, (8,))
    if iteration == 3:
        try:
            model(inputs, fails=True)
        except ValueError:
            model.reset_iter_state()
    for _ in range(1 + iteration % 2):
        loss = nn.functional.cross_entropy(model(inputs, seldom=iteration % 3 == 0), labels)
        loss.backward()
    if iteration == 5:
        model.score(inputs).backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
    with torch.inference_mode():
        seen.append(model(torch.ones(2, 40)).clone())
report([value.full_tensor() for value in model.state_dict().values()], losses=losses, seen=seen)
dist.destroy_process_group()
