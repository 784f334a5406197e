"""Random programs: what each does to gradients, parameters and optimizers, when, and on which ranks is drawn.

Rule of this file: what such programs do alike over DistributedDataParallel (ddp_random.py) and FSDP2 (fsdp_random.py).
It is ordinary code of a program, and knows nothing of Prophet.
"""

import copy

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_map

ITERATIONS = (6, 9, 14)

OPTIMIZERS = {
    "momentum": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda params: torch.optim.Adam(params, lr=1e-2, foreach=True),
    "fused": lambda params: torch.optim.AdamW(params, lr=1e-2, fused=True),
    "rms": lambda params: torch.optim.RMSprop(params, lr=1e-2, momentum=0.5),
}


def local(tensor):
    """Return this rank's part of a tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Program:
    """One program. Its `random` is the same on all ranks; `see` draws whether this rank takes part."""

    between, after = (), ()
    """Methods that may be called between backward and step, and after it."""
    renews = True
    """True if a gradient may be replaced by another tensor."""

    def __init__(self, model, optimizer, make, draws):
        self.model, self.optimizers, self.make, self.random = model, [optimizer], make, draws
        self.params = list(model.parameters())
        if draws.random() < 0.3:
            self.optimizers = [make(self.params[:2]), make(self.params[2:])]
        self.kept, self.arrays, self.hooks, self.averages, self.seen, self.saved = [], [], [], [], [], None

    def one(self):
        return self.random.choice(self.params)

    def some(self):
        return self.random.sample(self.params, self.random.randint(1, len(self.params)))

    def see(self, *values):
        if self.random.choice((0, 1, None, None)) in (None, dist.get_rank()):
            self.seen += [local(value()).double().sum().item() for value in values]

    def clear(self):
        how = self.random.choice(("none", "none", "zeros", "model", "by hand", "not"))
        if how == "model":
            self.model.zero_grad()
        elif how == "by hand":
            for param in self.params:
                param.grad = None
        elif how != "not":
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=how == "none")

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
                local(param.grad).view(-1)[:1] = 0.25
            elif how == 3 and self.renews:
                param.grad = param.grad + 0.01
            elif how == 4 and self.renews:
                param.grad = None
            elif how == 5:
                param.grad.zero_()

    def keeps_gradients(self):
        grad = self.one().grad
        if grad is not None:
            ways = (lambda: grad, lambda: local(grad).view(-1)[:3], grad.clone)
            self.kept.append(self.random.choice(ways)())
            self.arrays.append(local(grad).numpy())

    # Step.

    def step(self):
        how = self.random.choice(("all",) * 6 + ("not", "twice", "closure", "first", "frozen"))
        if how == "closure":
            for optimizer in self.optimizers:
                optimizer.step(lambda: torch.tensor(0.0))
        elif how != "not":
            learns = [param.requires_grad for param in self.params]
            for param in self.params:
                param.requires_grad_(how != "frozen" and param.requires_grad)
            for _ in range(1 + (how == "twice")):
                for optimizer in self.optimizers[: 1 if how == "first" else None]:
                    optimizer.step()
            for param, learned in zip(self.params, learns, strict=True):
                param.requires_grad_(learned)

    # After it.

    def keeps_parameters(self):
        param = self.one()
        ways = (lambda: param, lambda: param.data, param.detach, lambda: local(param).view(-1)[1:])
        self.kept.append(self.random.choice(ways)())
        self.arrays.append(local(param).detach().numpy())
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

    def run(self):
        for _ in range(self.random.choice(ITERATIONS)):
            self.clear()
            self.backward()
            for name in self.random.choices(self.between, k=self.random.choice((0, 0, 1, 2, 3))):
                getattr(self, name)()
            self.step()
            for name in self.random.choices(self.after, k=self.random.choice((0, 0, 0, 1, 2, 3))):
                getattr(self, name)()
        kept = [*self.kept, *self.averages, *(p.grad for p in self.params if p.grad is not None)]
        return self.seen, *tree_map(local, (kept, [optimizer.state_dict() for optimizer in self.optimizers]))
