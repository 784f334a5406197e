"""One model after another, each with another optimizer of torch.optim and names of its own."""

import byteps.torch as bps
import torch
from report import report
from torch import nn

bps.init()
torch.manual_seed(1)
kinds = {
    "adadelta": (torch.optim.Adadelta, {"lr": 0.5}),
    "adagrad": (torch.optim.Adagrad, {"lr": 1e-2}),
    "adamax": (torch.optim.Adamax, {"lr": 1e-2}),
    "asgd": (torch.optim.ASGD, {"lr": 1e-2}),
    "nadam": (torch.optim.NAdam, {"lr": 1e-2}),
    "radam": (torch.optim.RAdam, {"lr": 1e-2}),
    "rprop": (torch.optim.Rprop, {"lr": 1e-2}),
    "amsgrad": (torch.optim.Adam, {"lr": 1e-2, "amsgrad": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 1e-2, "centered": True, "momentum": 0.5}),
}
models, losses = {}, []
for kind, (make, options) in kinds.items():
    model = nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10))
    named = [(f"{kind}.{name}", p) for name, p in model.named_parameters()]
    optimizer = bps.DistributedOptimizer(make(model.parameters(), **options), named_parameters=named)
    bps.broadcast_parameters(model.state_dict(), root_rank=0, prefix=kind)
    torch.manual_seed(100 + bps.rank())
    for _ in range(4):
        inputs, labels = torch.randn(16, 32), torch.randint(10, (16,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    models[kind] = model
report(list(models.values()), losses=losses)
