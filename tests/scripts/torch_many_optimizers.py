"""Models trained one after another, each with another optimizer of torch.optim."""

import torch
from torch import nn
from ways import run_byteps, train, way

KINDS = {
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


def small():
    return nn.Sequential(nn.Linear(32, 96), nn.ReLU(), nn.Linear(96, 10))


def trained_with(name, kind, options):
    def some_steps(model, optimizer):
        return [train(model, optimizer) for _ in range(4)]

    some_steps.__name__ = name
    way(small, lambda params: kind(params, **options))(some_steps)


for name, (kind, options) in KINDS.items():
    trained_with(name, kind, options)
run_byteps()
