"""Each optimizer of torch.optim on a model of its own, one after another."""

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(1)
kinds = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "foreach": True}),
    "adam": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True, "foreach": True}),
    "adam fused": (torch.optim.Adam, {"lr": 1e-2, "fused": True}),
    "adamw": (torch.optim.AdamW, {"lr": 1e-2, "foreach": False}),
    "adamw maximize": (torch.optim.AdamW, {"lr": torch.tensor(1e-2), "maximize": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-2, "centered": True, "momentum": 0.5}),
    "adamax": (torch.optim.Adamax, {"lr": 1e-2}),
    "nadam": (torch.optim.NAdam, {"lr": 1e-2}),
    "asgd": (torch.optim.ASGD, {"lr": 1e-2}),
}
models, states, losses = [], [], []
for make, options in kinds.values():
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10)))
    optimizer = make(model.parameters(), **options)
    torch.manual_seed(100 + dist.get_rank())
    for _ in range(5):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        loss = nn.functional.cross_entropy(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    models.append(model)
    states.append(optimizer.state_dict())
report(models, states=states, losses=losses)
