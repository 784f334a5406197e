"""Checks, between steps, of what a program finds in its optimizer and of where torch's warnings point."""

import copy
import io
import pickle
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from report import report
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
warned = []
warnings.simplefilter("always")


def note(message, category, filename, lineno, *_):
    text = str(message)
    if category is not DeprecationWarning or "torch" in text:
        warned.append(f"{Path(filename).name}:{lineno} {text[:40]}")


warnings.showwarning = note


class Decayed(torch.optim.SGD):
    """Optimizer of a program's own, with methods around torch's."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr, momentum=0.9)
        self.calls = []

    def state_dict(self):
        self.calls.append("state_dict")
        return {**super().state_dict(), "calls": len(self.calls)}

    def load_state_dict(self, state_dict):
        self.calls.append("load_state_dict")
        super().load_state_dict({key: value for key, value in state_dict.items() if key != "calls"})

    def add_param_group(self, param_group):
        super().add_param_group({**param_group, "added": True})

    def __getstate__(self):
        return {key: value for key, value in self.__dict__.items() if key != "step"}


class Counted(torch.optim.Adam):
    """Optimizer that pickles in a way of its own."""

    def __reduce_ex__(self, protocol):
        return copy.deepcopy, (self.state_dict(),)


def saved(value, **how):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **how)


KINDS = {
    torch.optim.AdamW: lambda params: torch.optim.AdamW(params, lr=0.01),
    torch.optim.SGD: lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    torch.optim.Adagrad: lambda params: torch.optim.Adagrad(params, lr=0.01),
    Decayed: lambda params: Decayed(params, lr=0.1),
    Counted: lambda params: Counted(params, lr=0.01),
}
found, weights, numbers = [], [], []
for number, (kind, make) in enumerate(KINDS.items()):
    torch.manual_seed(number)
    ddp = DistributedDataParallel(nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 4)))
    if number == 0:
        ddp.module[0].register_backward_hook(lambda *_: None)
    optimizer = make(ddp.parameters())
    attributes = sorted(vars(optimizer))
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    torch.manual_seed(50 * number + dist.get_rank())
    for step in range(6):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(ddp(torch.randn(8, 16)), torch.randn(8, 4))
        loss.backward(create_graph=False)
        if number == 1 and step == 0:
            schedule.step()  # too soon
        optimizer.step()
        schedule.step(step)
        torch.nn.utils.clip_grad_norm(ddp.parameters(), 1.0)
        torch.nn.utils.clip_grad_norm_(iter(()), 1.0)
        found.append(
            str((type(optimizer) is kind, [type(group["params"]) is list for group in optimizer.param_groups]))
        )
        if step == 3:
            loaded = saved(optimizer.param_groups, weights_only=True)
            numbers += [p.detach().clone() for group in loaded for p in group["params"]]
            optimizer.load_state_dict(optimizer.state_dict())
        if step == 4 and kind is not Counted:
            for other in (copy.copy(optimizer), copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
                found.append(str((type(other) is kind, sorted(set(vars(other)) - set(attributes)))))
                numbers += [value for own in other.state.values() for value in own.values()]
        if step == 4 and kind is Counted:
            numbers += [
                value for own in pickle.loads(pickle.dumps(optimizer))["state"].values() for value in own.values()
            ]
    found.append(str(sorted(set(vars(optimizer)) - set(attributes))))
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
    found.append(str([type(group["params"]) is list for group in optimizer.param_groups]))
    ddp.state_dict(None, "", True)
    weights += [param.detach().clone() for param in ddp.parameters()]
    numbers += [value for own in optimizer.state.values() for value in own.values() if torch.is_tensor(value)]
print("\n".join(warned))
assert len(set(warned)) > 4, "it warns of little"
report(weights, numbers=numbers, found=[*found, 1], warned=[*warned, 1])
