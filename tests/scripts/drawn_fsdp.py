"""What random programs do over FSDP2 and replicate(), drawn as in drawn.py."""

import copy
import io

import torch
import torch.distributed as dist
from drawn import Program, local
from torch import nn
from torch.distributed._composable.replicate_with_fsdp import replicate
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint
from ways import batch, loss_of

POLICIES = (
    {},
    {},
    {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32},
    {"param_dtype": torch.bfloat16},
    {"reduce_dtype": torch.bfloat16},
)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.Linear(24, width), nn.Linear(width, 24)
        self.recomputes = self.short = False

    def body(self, values, short):
        inner = self.first(values).relu()
        return values + (inner[:, :24] if short else self.second(inner)).tanh()

    def forward(self, values):
        if self.recomputes:
            return checkpoint(self.body, values, self.short, use_reentrant=False)
        return self.body(values, self.short)


class Blocks(nn.Module):
    """Model whose forward pass uses some of its blocks. `tied`: two layers have the same weights. `differs`: ranks may
    use other parts of blocks.
    """

    def __init__(self, widths, tied):
        super().__init__()
        self.stem, self.norm, self.inner = nn.Linear(32, 24), nn.LayerNorm(24), nn.Linear(24, 24)
        self.blocks = nn.ModuleList(Block(width) for width in widths)
        self.outer, self.head = nn.Linear(24, 24), nn.Linear(24, 10)
        if tied:
            self.outer.weight = self.inner.weight
        self.used = range(len(widths))
        self.differs = False

    def forward(self, inputs):
        values = self.inner(self.stem(inputs)).relu()
        for place in self.used:
            values = self.blocks[place](values)
        return self.head(self.outer(self.norm(values)).tanh()).float()


def build(draws):
    """Return a model that is sharded or replicated in a way that is drawn."""
    ranks, kind = dist.get_world_size(), draws.choice(("shards", "shards", "hybrid", "replicas"))
    if kind == "hybrid" or (ranks == 4 and draws.random() < 0.5):
        shape = draws.choice(((2, 2), (2, 2), (4, 1))) if ranks == 4 else (ranks, 1)
        options = {"mesh": init_device_mesh("cpu", shape, mesh_dim_names=("replicas", "shards"))}
        shard, kind = fully_shard, "hybrid"
    else:
        shard, options = fully_shard if kind == "shards" else replicate, {}
    model = Blocks(draws.choices((24, 31, 40), k=draws.randint(2, 4)), tied=draws.random() < 0.3)
    options["mp_policy"] = MixedPrecisionPolicy(**draws.choice(POLICIES))
    if draws.random() < 0.3:
        draws.choice(list(model.parameters())).requires_grad_(False)
    model.differs = draws.random() < 0.3 and options["mp_policy"] == MixedPrecisionPolicy()
    again = [True, True, False, None] + [2] * (ranks == 4 and kind == "shards")
    for block in model.blocks:
        block.recomputes = draws.random() < 0.3
        for module in (block.first, block):
            if draws.random() < (0.3 if module is block.first else 0.9):
                shard(
                    module, **options, **({} if shard is replicate else {"reshard_after_forward": draws.choice(again)})
                )
    if draws.random() < 0.4:
        shard(model.head, **options)
    shard(model, **options)
    if model.differs:
        model.set_reduce_scatter_unused_params(True)
    return model


def shrink(param):
    local(param.grad).mul_(0.9)


class OverFSDP(Program):
    """One program. What communicates is the same on all ranks."""

    between = ("reads", "reads_whole", "changes", "clips", "keeps_gradients", "evaluates")
    after = ("reads_parameters", "writes_parameters", "keeps_parameters", "looks_at_optimizers", "has_states")
    after += ("hooks_gradients", "fails", "unshards", "evaluates", "trains_another", "freezes", "renews_all", "leads")

    def __init__(self, *others):
        super().__init__(*others)
        self.modules = [module for module in self.model.modules() if hasattr(module, "set_reshard_after_backward")]
        self.rates = [torch.optim.lr_scheduler.ExponentialLR(each, 0.95) for each in self.optimizers]
        self.tied = self.model.outer.weight is self.model.inner.weight
        self.other, self.skips = None, False  # FSDP2 demands that the first pass uses all.

    def whole(self, *tensors):
        self.seen += [tensor.full_tensor().double().sum().item() for tensor in tensors]

    def loss(self):
        if self.skips and self.random.random() < 0.2:
            count = len(self.model.blocks)
            self.model.used = sorted(self.random.sample(range(count), self.random.randint(1, count)))
        if self.skips and self.model.differs:
            for block in self.model.blocks:
                block.short = self.random.choice((0, 1, None, None)) == dist.get_rank()
        return loss_of(self.model, *batch())

    def makes_gradients(self):
        loss = self.loss()
        loss.backward()
        self.seen.append(loss.item())

    def backward(self):
        how = self.random.choice(
            ("once",) * 5
            + ("locally", "kept", "two losses", "two graphs", "twice", "summed", "one layer", "parts")
            + ("written", "stepped")
        )
        if how in ("locally", "summed", "one layer"):
            self.skips = False  # All passes must make the same gradients.
        if how == "locally":
            self.model.set_requires_gradient_sync(False)
            self.makes_gradients()
            self.model.set_requires_gradient_sync(True)
        elif how == "kept":
            last, reshards = self.random.random() < 0.5, self.random.random() < 0.5
            self.model.set_is_last_backward(last)
            self.model.set_reshard_after_backward(reshards)
            self.makes_gradients()
            self.model.set_is_last_backward(True)
            self.model.set_reshard_after_backward(True)
        elif how == "summed":
            self.model.set_requires_all_reduce(False)
            self.makes_gradients()
            self.model.set_requires_all_reduce(True)
        elif how == "one layer":
            module = self.random.choice(self.modules)
            module.set_requires_gradient_sync(False, recurse=False)
            self.makes_gradients()
            module.set_requires_gradient_sync(True, recurse=False)
        elif how in ("two graphs", "stepped"):
            first, second = self.loss(), self.loss()
            first.backward()
            if how == "stepped":
                super().step()
                self.clear()
            second.backward()
        elif how == "twice":
            loss = self.loss()
            loss.backward(retain_graph=True)
            loss.backward()
        elif how == "parts":  # of parameters, on each rank for itself
            sum(local(param).square().sum() for param in self.params).mul(1e-3).backward()
        if how == "two losses":
            (self.loss() + self.loss()).backward()
        elif how == "written":
            loss = self.loss()
            with torch.no_grad():
                self.one().mul_(1.01)
            loss.backward()
        elif how not in ("two graphs", "stepped", "twice"):
            self.makes_gradients()
        self.skips = True

    # Between backward and step.

    def reads_whole(self):
        grads = [param.grad for param in self.some() if param.grad is not None]
        self.whole(*(self.random.choice((grad.detach, grad.norm, grad.clone))() for grad in grads))

    def clips(self):
        how, some = self.random.randrange(3), [param for param in self.some() if param.grad is not None]
        if how == 2 and some:
            nn.utils.clip_grad_value_(some, 0.02)
        elif some:
            kind = self.random.choice((1.0, 2.0, 2.0, float("inf")))
            self.whole(nn.utils.clip_grad_norm_(some if how else self.params, 0.3, norm_type=kind))

    def step(self):
        super().step()
        if self.random.random() < 0.2:
            for rate in self.rates:
                rate.step()

    # After it.

    def reads_parameters(self):
        how, some = self.random.randrange(5), self.some()
        if how == 0:
            self.whole(*(param.detach() for param in some))
        elif how == 1:
            self.see(*(lambda v=v: v for v in copy.deepcopy(self.model.state_dict()).values()))
        elif how == 2:
            file = io.BytesIO()
            torch.save({name: local(value) for name, value in self.model.state_dict().items()}, file)
            self.see(*(lambda v=v: v for v in torch.load(io.BytesIO(file.getvalue())).values()))
        elif how == 3:
            self.see(*(lambda a=a: torch.from_numpy(a.copy()) for a in self.arrays))
        else:
            self.see(*(lambda p=p: p for p in some), *(lambda kept=kept: kept for kept in self.kept))

    def writes_parameters(self):
        how, param = self.random.randrange(5), self.one()
        with torch.no_grad():
            if how == 0:
                param.mul_(0.99)
            elif how == 1:
                local(param).mul_(0.98)
            elif how == 2:
                param.data.add_(0.01)
            elif how == 3 and self.saved:
                self.model.load_state_dict(self.saved)
            else:
                self.saved = copy.deepcopy(self.model.state_dict())

    def freezes(self):
        for module in self.modules:
            module.reshard()
        param = self.one()
        param.requires_grad_(not param.requires_grad)

    def renews_all(self):
        """Load new parameters, with new optimizers."""
        if self.tied:
            return
        for module in self.modules:
            module.reshard()
        self.model.load_state_dict(copy.deepcopy(self.model.state_dict()), assign=True)
        learns = [param.requires_grad for param in self.params]
        self.params = list(self.model.parameters())
        for param, learned in zip(self.params, learns, strict=True):
            param.requires_grad_(learned)
        self.optimizers, self.rates = [self.make(self.params)], []

    def leads(self):
        """Say what is gathered ahead."""
        module = self.random.choice(self.modules)
        others = self.random.sample(self.modules, self.random.randint(0, min(2, len(self.modules))))
        self.random.choice((module.set_modules_to_forward_prefetch, module.set_modules_to_backward_prefetch))(others)

    def has_states(self):
        options = StateDictOptions(full_state_dict=self.random.random() < 0.5)
        for module in self.modules:
            module.reshard()
        if self.random.random() < 0.5:
            state = get_model_state_dict(self.model, options=options)
            self.seen.append(sum(local(value).double().sum().item() for value in state.values()))
            if self.random.random() < 0.3:
                set_model_state_dict(self.model, state, options=options)
        elif not self.tied and all(self.optimizers[0].state.get(param) for param in self.params):
            state = get_optimizer_state_dict(self.model, self.optimizers, options=options)
            states = [value for each in state["state"].values() for value in each.values()]
            self.seen += [local(value).double().sum().item() for value in states]
            if self.random.random() < 0.3:
                set_optimizer_state_dict(self.model, self.optimizers, state, options=options)

    def hooks_gradients(self):
        if self.hooks and self.random.random() < 0.5:
            self.hooks.pop().remove()
            return
        how, param = self.random.randrange(3), self.one()
        if how == 0 and param.requires_grad:
            self.hooks.append(param.register_post_accumulate_grad_hook(shrink))
        elif how == 1:
            block = self.random.choice(self.model.blocks)
            self.hooks.append(block.register_full_backward_hook(lambda module, inner, outer: (inner[0] * 0.9,)))
        else:

            def look(module, inner, outer):
                grad = param.grad
                self.seen.append(0.0 if grad is None else local(grad).double().sum().item())

            self.hooks.append(self.random.choice(self.model.blocks).register_full_backward_hook(look))

    def fails(self):
        places = list(self.model.modules())[1:]
        hook = self.random.choice(places).register_forward_pre_hook(lambda *_: 1 / 0)
        try:
            self.seen.append(loss_of(self.model, *batch()).item())
        except ZeroDivisionError:
            self.model.reset_iter_state()
            self.seen.append(0.0)
        hook.remove()

    def unshards(self):
        module = self.random.choice(self.modules)
        handle = module.unshard(async_op=self.random.random() < 0.5)
        if handle is not None:
            handle.wait()
        self.see(*(lambda p=p: p.detach() for p in module.parameters(recurse=False)))
        if self.random.random() < 0.7:
            module.reshard()

    def evaluates(self):
        self.model.eval()
        with self.random.choice((torch.no_grad, torch.inference_mode))():
            self.seen.append(self.model(torch.ones(2, 32)).double().sum().item())
        self.model.train()
        if self.random.random() < 0.5:
            self.model.reshard()

    def trains_another(self):
        if self.other is None:
            model = build(self.random)
            self.other = OverFSDP(model, self.make(model.parameters()), self.make, self.random)
            self.other.other = self
        other = self.other
        other.backward()
        other.step()
        other.clear()
        self.seen += other.seen
        other.seen = []
