"""Random programs over DistributedDataParallel that do more, drawn as in drawn_more.py, each from its number."""

import copy
import os
import random

import torch
import torch.distributed as dist
from drawn_ddp import Branches, OverDDP, Tied
from drawn_more import MORE_OPTIMIZERS, MoreProgram
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrizations
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint
from ways import batch, classifier, loss_of, normed, run_ddp, way

FIRST, PROGRAMS = int(os.environ.get("FIRST", "0")), int(os.environ.get("PROGRAMS", "12"))


HOOKS = (default_hooks.allreduce_hook, default_hooks.fp16_compress_hook)


class Recomputed(nn.Module):
    """Model with a part that is computed again in backward."""

    def __init__(self, reentrant):
        super().__init__()
        self.first, self.part, self.head = nn.Linear(32, 48), nn.Linear(48, 48), nn.Linear(48, 10)
        self.reentrant = reentrant

    def forward(self, inputs):
        hidden = checkpoint(
            lambda values: self.part(values).tanh(), self.first(inputs).relu(), use_reentrant=self.reentrant
        )
        return self.head(hidden)


class Various(nn.Module):
    """Model with many kinds of layers."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(12, 8)
        self.conv, self.norm = nn.Conv1d(4, 6, 3, padding=1), nn.BatchNorm1d(6)
        self.recurrent = nn.GRU(6, 10, batch_first=True)
        self.attends = nn.MultiheadAttention(10, 2, batch_first=True)
        self.scale = nn.Parameter(torch.ones(()))
        self.head = nn.Linear(18, 10)
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, inputs):
        values = self.norm(self.conv(inputs.view(-1, 4, 8))).relu().transpose(1, 2)
        values, _ = self.recurrent(values)
        values, _ = self.attends(values, values, values, need_weights=False)
        if self.training:
            self.passes += 1
        which = (inputs[:, 0].abs() * 4).long().clamp(max=11)
        if self.scale.item() > 1.01:
            values = values * 0.9
        return self.head(torch.cat([values.mean(1) * self.scale, self.table(which)], 1))


def parametrized():
    first, second = nn.Linear(32, 48), nn.Linear(48, 40)
    return nn.Sequential(
        parametrizations.weight_norm(first),
        nn.Tanh(),
        parametrizations.spectral_norm(second),
        nn.ReLU(),
        nn.Linear(40, 10),
    )


def dropped():
    return nn.Sequential(nn.Linear(32, 64), nn.Dropout(0.2), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 10))


MODELS = {
    "classifier": classifier,
    "tied": Tied,
    "branches": Branches,
    "normed": normed,
    "again": lambda: Recomputed(False),
    "reentrant": lambda: Recomputed(True),
    "various": Various,
    "parametrized": parametrized,
    "dropped": dropped,
}


class MoreOverDDP(MoreProgram, OverDDP):
    more_ways = (*MoreProgram.more_ways, "nested", "retained", "twice", "by_attribute", "alone", "with_penalty")
    more_ways += ("with_decay", "accumulated", "past_the_wrapper", "by_hand", "of_two_tasks", "of_some")
    between = OverDDP.between + MoreProgram.more_between + ("adds_up",)
    after = OverDDP.after + MoreProgram.more_after
    after += (
        "hooks_modules",
        "freezes",
        "averages_models",
        "vectors",
        "keeps_graphs",
        "transforms",
        "wraps_again",
        "trains_a_copy",
        "shows_another",
    )

    def __init__(self, *others):
        super().__init__(*others)
        self.average, self.graphs = None, []
        if self.model.find_unused_parameters:
            self.cannot = ("retained", "twice", "with_penalty", "with_decay", "past_the_wrapper", "by_hand", "of_some")
            self.cannot += ("alone",)  # torch's reducer may then refuse the next pass.
        elif isinstance(self.module, Various):
            self.cannot = ("with_penalty",)  # torch's attention has no second derivative.
        elif isinstance(self.module, Recomputed) and self.module.reentrant:
            self.only_once = True
            self.cannot = ("with_penalty", "from_better_inputs", "with_decay", "by_hand", "of_some")

    def backward(self):
        if self.model.find_unused_parameters and self.random.random() < 0.5:
            OverDDP.backward(self)
        else:
            super().backward()

    def nested(self):
        with self.model.no_sync():
            self.loss().backward()
            with self.model.no_sync():
                self.loss().backward()
            self.loss().backward()
        return self.goes_back_over(self.loss())

    def retained(self):
        with self.model.no_sync():
            loss = self.loss()
            loss.backward(retain_graph=True)
        return self.goes_back_over(loss)

    def twice(self):
        loss = self.loss()
        loss.backward(retain_graph=True)
        return self.goes_back_over(loss)

    def by_attribute(self):
        self.model.require_backward_grad_sync = False
        self.loss().backward()
        self.model.require_backward_grad_sync = True
        return self.goes_back_over(self.loss())

    def alone(self):
        self.model.require_backward_grad_sync = False
        self.loss().backward()
        self.model.require_backward_grad_sync = True

    def with_penalty(self):
        inputs, labels = batch()
        inputs.requires_grad_()
        out = self.model(inputs)
        (slope,) = torch.autograd.grad(out.sum(), inputs, create_graph=True)
        return self.goes_back_over(nn.functional.cross_entropy(out, labels) + 0.1 * slope.square().sum())

    def with_decay(self):
        return self.goes_back_over(self.loss() + 1e-3 * sum(param.square().sum() for param in self.params))

    def accumulated(self):
        for _ in range(2):
            loss = self.goes_back_over(self.loss() / 2)
        return loss

    def past_the_wrapper(self):
        """Add a gradient that is this rank's own."""
        loss_of(self.module, *batch()).backward()
        return self.goes_back_over(self.loss())

    def by_hand(self):
        """Make gradients and averages without the wrapper."""
        learn, anew = [param for param in self.params if param.requires_grad], self.random.random() < 0.5
        grads = torch.autograd.grad(loss_of(self.module, *batch()), learn, allow_unused=True)
        for param, grad in zip(learn, grads, strict=True):
            if grad is not None:
                dist.all_reduce(grad)
                grad.div_(dist.get_world_size())
                param.grad = grad if param.grad is None or anew else param.grad.copy_(grad)

    def of_two_tasks(self):
        """Put the gradient of one loss aside, and join it with that of another."""
        self.loss().backward()
        first = [param.grad for param in self.params]
        for param in self.params:
            param.grad = None
        loss, exchanges = self.goes_back_over(self.loss()), self.random.random() < 0.5
        for param, grad in zip(self.params, first, strict=True):
            if grad is not None and param.grad is not None:
                if self.renews and exchanges:
                    param.grad, grad = grad, param.grad
                param.grad.add_(grad, alpha=0.5)
        return loss

    def of_some(self):
        """Add gradients of some parameters, of this rank's own."""
        with self.model.no_sync():
            self.loss().backward(inputs=[param for param in self.some() if param.requires_grad])
        return self.goes_back_over(self.loss())

    def adds_up(self):
        """Average gradients by the program itself."""
        for param in self.has() if not self.model.find_unused_parameters else ():
            work = dist.all_reduce(param.grad, async_op=True)
            work.wait()
            param.grad.div_(dist.get_world_size())

    def hooks_modules(self):
        """Look at a layer's weights in forward or backward, or write there."""
        if self.hooks and self.random.random() < 0.6:
            self.hooks.pop().remove()
            return
        how, layer = self.random.randrange(5), self.random.choice(list(self.module.modules())[1:])
        own = list(layer.parameters())

        def look(*_):
            self.seen.append(self.total(own))

        def write(*_):
            with torch.no_grad():
                for param in own:
                    param.data.mul_(0.999)

        def shrink(param):
            param.grad.mul_(0.9)

        if how == 0:
            self.hooks.append(layer.register_forward_hook(look))
        elif how == 1:
            self.hooks.append(layer.register_forward_pre_hook(write))
        elif how == 2:
            param = self.one()
            if param.requires_grad:
                self.hooks.append(param.register_post_accumulate_grad_hook(shrink))
        elif not any(isinstance(each, Recomputed) and each.reentrant for each in self.module.modules()):
            self.hooks.append(layer.register_full_backward_hook(look))

    def freezes(self):
        if self.model.find_unused_parameters:
            param = self.one()
            param.requires_grad_(not param.requires_grad)

    def shows_another(self):
        """Train copies of local parameters, with a copy of the optimizer."""
        optimizer = self.random.choice(self.optimizers)
        params = [param for group in optimizer.param_groups for param in group["params"]]
        params, twin = copy.deepcopy((params, optimizer))
        for param in params:
            param.grad = torch.full_like(param, 0.01)
        twin.step()
        self.seen.append(self.total(params))

    def averages_models(self):
        if self.average is None:
            self.average = AveragedModel(self.module, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
        elif not any(nn.utils.parametrize.is_parametrized(each) for each in self.module.modules()):
            self.average.update_parameters(self.module)
            self.average.eval()
            self.see(lambda: self.average(torch.ones(2, 32)).detach())
            if self.random.random() < 0.2:
                self.module.load_state_dict(self.average.module.state_dict())

    def vectors(self):
        vector = nn.utils.parameters_to_vector(self.params).detach()
        self.seen.append(vector.double().sum().item())
        nn.utils.vector_to_parameters(vector * 0.99, self.params)

    def keeps_graphs(self):
        """Make a graph from parameters, and go back through it after other steps. Fused optimizers hide their writes
        from autograd, so torch overlooks that the graph is old.
        """
        if any(group.get("fused") for optimizer in self.optimizers for group in optimizer.param_groups):
            return
        for graph, to in self.graphs:
            try:
                grads = torch.autograd.grad(graph, to, allow_unused=True)
                self.seen.append(self.total([grad for grad in grads if grad is not None]))
            except RuntimeError:
                self.seen.append(-3.0)
        self.graphs = []
        if self.random.random() < 0.5:
            inputs = torch.ones(2, 32, requires_grad=True)
            self.graphs.append((self.module(inputs).sum(), (inputs,)))
        else:
            some = [param for param in self.some() if param.requires_grad]
            if some:
                self.graphs.append((sum(param.square().sum() for param in some), some))

    def transforms(self):
        named = {name: param.detach() for name, param in self.module.named_parameters()}
        how = self.random.randrange(3)
        self.module.eval()
        try:
            if how == 0:
                inputs = (torch.ones(2, 32),)
                grads = torch.func.grad(lambda p: torch.func.functional_call(self.module, p, inputs).sum())(named)
                self.seen.append(self.total(grads.values()))
            elif how == 1:
                twin = copy.deepcopy(self.module)
                self.seen.append(twin(torch.ones(2, 32)).sum().item())
            else:
                params, _ = torch.func.stack_module_state([self.module, self.module])
                self.seen.append(self.total(params.values()))
        except RuntimeError:
            self.seen.append(-4.0)
        self.module.train()

    def wraps_again(self):
        if self.random.random() < 0.3:
            ddp = self.model
            self.model = DistributedDataParallel(
                self.module,
                gradient_as_bucket_view=ddp.gradient_as_bucket_view,
                find_unused_parameters=ddp.find_unused_parameters,
                broadcast_buffers=False,
            )

    def trains_a_copy(self):
        module, optimizer = copy.deepcopy((self.module, self.optimizers[0]))
        optimizer.zero_grad()
        module(torch.ones(4, 32)).square().mean().backward()
        optimizer.step()
        self.seen.append(self.total(module.parameters()))


def add(number):
    """Add a program to the ways of this script."""
    draws = random.Random(f"more {number}")
    name = draws.choice(sorted(MODELS))
    make = MORE_OPTIMIZERS[draws.choice(sorted(MORE_OPTIMIZERS))]
    # A rank may make a forward pass alone.
    options = {"gradient_as_bucket_view": draws.random() < 0.4, "broadcast_buffers": False}
    if name == "branches":
        options["find_unused_parameters"] = draws.random() < 0.6
    if draws.random() < 0.4:
        options["bucket_cap_mb"] = 0.002
    hook = draws.choice((None, None, None, *HOOKS))

    def program(ddp, optimizer):
        if hook is not None:
            ddp.register_comm_hook(None, hook)
        program = MoreOverDDP(ddp, optimizer, make, draws)
        saw = program.run()
        for param in program.params:
            dist.broadcast(param.data, 0)
        return saw

    program.__name__ = f"program_{number}"
    way(MODELS[name], make, **options)(program)


for number in range(FIRST, FIRST + PROGRAMS):
    add(number)
run_ddp()
