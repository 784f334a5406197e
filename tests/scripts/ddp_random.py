"""Random programs: what each does to gradients and parameters, when, and on which ranks is drawn from its number."""

import copy
import io
import os
import random

import torch
import torch.distributed as dist
from torch import nn
from ways import batch, classifier, loss_of, run_ddp, way

PROGRAMS = int(os.environ.get("PROGRAMS", "16"))
ITERATIONS = (6, 9, 14)


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


OPTIMIZERS = {
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2, foreach=True),
    "fused": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "rms": lambda params: torch.optim.RMSprop(params, lr=1e-2, momentum=0.5),
}


class Program:
    """One program. Its `random` is the same on all ranks; `here` draws whether this rank takes part."""

    def __init__(self, ddp, optimizer, make, draws):
        self.ddp, self.model, self.optimizers, self.make, self.random = ddp, ddp.module, [optimizer], make, draws
        self.params = list(ddp.parameters())
        if draws.random() < 0.3:
            self.optimizers = [make(self.params[:2]), make(self.params[2:])]
        self.views = ddp.gradient_as_bucket_view
        self.kept, self.arrays, self.hooks, self.averages, self.seen, self.saved = [], [], [], [], [], None

    def one(self):
        return self.random.choice(self.params)

    def some(self):
        return self.random.sample(self.params, self.random.randint(1, len(self.params)))

    def see(self, *values):
        if self.random.choice((0, 1, None, None)) in (None, dist.get_rank()):
            self.seen += [value().double().sum().item() for value in values]

    def loss(self):
        if self.ddp.find_unused_parameters:
            of_rank = [self.random.choice(((0,), (0, 1), (0, 1, 2), (2,), (1, 2))) for _ in range(2)]
            self.model.used = of_rank[dist.get_rank() if self.random.random() < 0.3 else 0]
        return loss_of(self.ddp, *batch())

    # Before the gradients.

    def clear(self):
        how = self.random.choice(("none", "none", "zeros", "model", "by hand", "not"))
        if how == "model":
            self.ddp.zero_grad()
        elif how == "by hand":
            for param in self.params:
                param.grad = None
        elif how != "not":
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=how == "none")

    def backward(self):
        how = self.random.choice(("once", "once", "once", "locally", "two losses", "one more", "evaluates"))
        if self.ddp.find_unused_parameters:
            how = "once"
        if how == "locally":
            with self.ddp.no_sync():
                self.loss().backward()
        elif how == "one more":  # on one rank alone
            more = batch()
            self.see(lambda: loss_of(self.ddp, *more).detach())
        elif how == "evaluates":
            self.ddp.eval()
            with torch.no_grad():
                self.see(lambda: self.ddp.module(torch.ones(2, 32)))
            self.ddp.train()
        loss = self.loss() + self.loss() if how == "two losses" else self.loss()
        loss.backward()
        self.seen.append(loss.item())

    # Between backward and step.

    def reads(self):
        self.see(*(lambda p=p: p.grad for p in self.some() if p.grad is not None))

    def changes(self):
        how, some = self.random.randrange(6), [p for p in self.some() if p.grad is not None]
        if how == 0:
            torch._foreach_mul_([p.grad for p in some] or [torch.ones(1)], 0.9)
        for param in some:
            if how == 1:
                param.grad.data.clamp_(-0.1, 0.1)
            elif how == 2:
                param.grad.view(-1)[0] = 0.25
            elif how == 3 and not self.views:
                param.grad = param.grad + 0.01
            elif how == 4 and not self.views:
                param.grad = None
            elif how == 5:
                param.grad.zero_()

    def clips(self):
        how = self.random.randrange(3)
        if how == 0:
            self.seen.append(nn.utils.clip_grad_norm_(self.ddp.parameters(), 0.3).item())
        elif how == 1:
            kind = self.random.choice((1.0, 2.0, float("inf")))
            self.seen.append(nn.utils.clip_grad_norm_(self.some(), 0.2, norm_type=kind).item())
        elif some := [param for param in self.some() if param.grad is not None]:
            nn.utils.clip_grad_value_(some, 0.02)

    def keeps_gradients(self):
        grad = self.one().grad
        if grad is not None:
            self.kept.append(self.random.choice((lambda: grad, lambda: grad.view(-1)[:3], grad.clone))())
            self.arrays.append(grad.numpy())

    # Step.

    def step(self):
        how = self.random.choice(("all",) * 6 + ("not", "twice", "closure", "first", "frozen"))
        if how == "closure":
            for optimizer in self.optimizers:
                optimizer.step(lambda: torch.tensor(0.0))
        elif how != "not":
            for param in self.params:
                param.requires_grad_(how != "frozen")
            for _ in range(1 + (how == "twice")):
                for optimizer in self.optimizers[: 1 if how == "first" else None]:
                    optimizer.step()
            for param in self.params:
                param.requires_grad_(True)

    # After it.

    def reads_parameters(self):
        how, some = self.random.randrange(6), self.some()
        if how == 0:
            self.see(lambda: nn.utils.parameters_to_vector(self.params))
        elif how == 1:
            self.see(lambda: next(copy.deepcopy(self.model).parameters()))
        elif how == 2:
            named = dict(self.model.named_parameters())
            self.see(lambda: torch.func.functional_call(self.model, named, (torch.ones(4, 32),)))
        elif how == 3:
            self.see(self.loaded)
        elif how == 4:
            self.see(*(lambda a=a: torch.from_numpy(a.copy()) for a in self.arrays))
        else:
            self.see(*(lambda p=p: p for p in some), *(lambda kept=kept: kept for kept in self.kept))

    def loaded(self):
        file = io.BytesIO()
        torch.save(self.ddp.state_dict(), file)
        return torch.load(io.BytesIO(file.getvalue()))[next(iter(self.ddp.state_dict()))]

    def writes_parameters(self):
        how, param = self.random.randrange(4), self.one()
        with torch.no_grad():
            if how == 0:
                param.mul_(0.99)
            elif how == 1:
                param.data = param.data.clone()
            elif how == 2 and self.saved:
                self.ddp.load_state_dict(self.saved)
            else:
                self.saved = copy.deepcopy(self.ddp.state_dict())

    def keeps_parameters(self):
        param = self.one()
        ways = (lambda: param, lambda: param.data, param.detach, lambda: param.view(-1)[1:])
        self.kept.append(self.random.choice(ways)())
        self.arrays.append(param.detach().numpy())
        if not self.averages:
            self.averages = [p.detach().clone() for p in self.params]
        torch._foreach_lerp_(self.averages, [p.detach() for p in self.params], 0.3)

    def looks_at_optimizers(self):
        how, optimizer = self.random.randrange(4), self.random.choice(self.optimizers)
        if how == 0:
            optimizer.param_groups[0]["lr"] *= 0.9
        elif how == 1:
            optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        elif how == 2:
            parts = [value for state in optimizer.state.values() for value in state.values()]
            self.see(*(lambda part=part: part for part in parts if isinstance(part, torch.Tensor)))
        else:
            params = [param for group in optimizer.param_groups for param in group["params"]]
            self.optimizers[self.optimizers.index(optimizer)] = self.make(params)

    def hooks_gradients(self):
        if self.hooks and self.random.random() < 0.5:
            self.hooks.pop().remove()
        else:
            self.hooks.append(self.one().register_hook(lambda grad: grad * 0.9))

    def fails(self):
        hook, inputs = list(self.model.modules())[-1].register_forward_pre_hook(lambda *_: 1 / 0), batch()
        try:
            self.see(lambda: loss_of(self.ddp, *inputs))
        except ZeroDivisionError:
            self.seen.append(0.0)
        hook.remove()

    def run(self):
        between = (self.reads, self.changes, self.clips, self.keeps_gradients)
        after = (self.reads_parameters, self.writes_parameters, self.keeps_parameters, self.looks_at_optimizers)
        after += (self.hooks_gradients, self.fails)
        for _ in range(self.random.choice(ITERATIONS)):
            self.clear()
            self.backward()
            for action in self.random.choices(between, k=self.random.choice((0, 0, 1, 2, 3))):
                action()
            self.step()
            for action in self.random.choices(after, k=self.random.choice((0, 0, 0, 1, 2, 3))):
                action()
        kept = [*self.kept, *self.averages, *(p.grad for p in self.params if p.grad is not None)]
        return self.seen, kept, [optimizer.state_dict() for optimizer in self.optimizers]


def add(number):
    """Add a program to the ways of this script."""
    draws = random.Random(number)
    build = draws.choice((classifier, Tied, Branches, Branches))
    make = OPTIMIZERS[draws.choice(sorted(OPTIMIZERS))]
    options = {"gradient_as_bucket_view": draws.random() < 0.4}
    if build is Branches:
        options["find_unused_parameters"] = draws.random() < 0.6
    if draws.random() < 0.4:
        options["bucket_cap_mb"] = 0.002

    def program(ddp, optimizer):
        return Program(ddp, optimizer, make, draws).run()

    program.__name__ = f"program_{number}"
    way(build, make, **options)(program)


for number in range(PROGRAMS):
    add(number)
run_ddp()
