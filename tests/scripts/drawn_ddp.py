"""What random programs do over DistributedDataParallel, drawn as in drawn.py."""

import copy
import io

import torch
import torch.distributed as dist
from drawn import Program
from torch import nn
from ways import batch, loss_of


class Branches(nn.Module):
    """Model whose forward pass uses some of its parts."""

    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(32, 48), nn.Linear(48, 10)
        self.parts = nn.ModuleList(nn.Linear(48, 48) for _ in range(3))
        self.used = (0, 1, 2)

    def forward(self, inputs):
        hidden = self.stem(inputs).relu()
        for place in self.used:
            hidden = hidden + self.parts[place](hidden).tanh()
        return self.head(hidden)


class Tied(nn.Module):
    """Model with one weight in two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 10)
        self.second.weight = self.first.weight

    def forward(self, inputs):
        return self.head(self.second(self.first(inputs).relu()).tanh())


class OverDDP(Program):
    """One program. `self.module` is the one within the wrapper, `self.model`."""

    between = ("reads", "changes", "clips", "keeps_gradients")
    after = ("reads_parameters", "writes_parameters", "keeps_parameters", "looks_at_optimizers")
    after += ("hooks_gradients", "fails")

    only_once = False
    """True if torch has only one backward pass for each forward pass of the model."""

    def __init__(self, ddp, *others):
        super().__init__(ddp, *others)
        self.module, self.renews = ddp.module, not ddp.gradient_as_bucket_view

    def loss(self):
        if self.model.find_unused_parameters:
            of_rank = [self.random.choice(((0,), (0, 1), (0, 1, 2), (2,), (1, 2))) for _ in range(2)]
            self.module.used = of_rank[dist.get_rank() if self.random.random() < 0.3 else 0]
        return loss_of(self.model, *batch())

    def backward(self):
        how = self.random.choice(("once", "once", "once", "locally", "two losses", "one more", "evaluates"))
        if self.model.find_unused_parameters or self.only_once:
            how = "once"
        if how == "locally":
            with self.model.no_sync():
                self.loss().backward()
        elif how == "one more":  # on one rank alone
            more = batch()
            self.see(lambda: loss_of(self.model, *more).detach())
        elif how == "evaluates":
            self.model.eval()
            with torch.no_grad():
                self.see(lambda: self.model.module(torch.ones(2, 32)))
            self.model.train()
        loss = self.loss() + self.loss() if how == "two losses" else self.loss()
        loss.backward()
        self.seen.append(loss.item())

    def clips(self):
        how = self.random.randrange(3)
        if how == 0:
            self.seen.append(nn.utils.clip_grad_norm_(self.model.parameters(), 0.3).item())
        elif how == 1:
            kind = self.random.choice((1.0, 2.0, float("inf")))
            self.seen.append(nn.utils.clip_grad_norm_(self.some(), 0.2, norm_type=kind).item())
        elif some := [param for param in self.some() if param.grad is not None]:
            nn.utils.clip_grad_value_(some, 0.02)

    def reads_parameters(self):
        how, some = self.random.randrange(6), self.some()
        if how == 0:
            self.see(lambda: nn.utils.parameters_to_vector(self.params))
        elif how == 1:
            self.see(lambda: next(copy.deepcopy(self.module).parameters()))
        elif how == 2:
            named = dict(self.module.named_parameters())
            self.see(lambda: torch.func.functional_call(self.module, named, (torch.ones(4, 32),)))
        elif how == 3:
            self.see(self.loaded)
        elif how == 4:
            self.see(*(lambda a=a: torch.from_numpy(a.copy()) for a in self.arrays))
        else:
            self.see(*(lambda p=p: p for p in some), *(lambda kept=kept: kept for kept in self.kept))

    def loaded(self):
        file = io.BytesIO()
        torch.save(self.model.state_dict(), file)
        return torch.load(io.BytesIO(file.getvalue()))[next(iter(self.model.state_dict()))]

    def writes_parameters(self):
        how, param = self.random.randrange(4), self.one()
        with torch.no_grad():
            if how == 0:
                param.mul_(0.99)
            elif how == 1:
                param.data = param.data.clone()
            elif how == 2 and self.saved:
                self.model.load_state_dict(self.saved)
            else:
                self.saved = copy.deepcopy(self.model.state_dict())

    def hooks_gradients(self):
        if self.hooks and self.random.random() < 0.5:
            self.hooks.pop().remove()
        elif (param := self.one()).requires_grad:
            self.hooks.append(param.register_hook(lambda grad: grad * 0.9))

    def fails(self):
        hook, inputs = list(self.module.modules())[-1].register_forward_pre_hook(lambda *_: 1 / 0), batch()
        try:
            self.see(lambda: loss_of(self.model, *inputs))
        except ZeroDivisionError:
            self.seen.append(0.0)
        hook.remove()
