"""Uses of gradients, parameters and lists of what to gather ahead, around the steps of one model."""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from sharded import adamw, backward, layers, parts, step
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_collectives import DefaultReduceScatter
from ways import run_fsdp, way


@way(layers, adamw)
def accumulation(model, optimizer):
    """Accumulation without communication, with a reduction each time, and with parameters kept in between."""
    losses = []
    for iteration in range(9):
        case, last = iteration % 3, 2
        for micro in range(3):
            if case == 0:
                model.set_requires_gradient_sync(micro == last)
            elif case == 1:
                model.set_is_last_backward(micro == last)
                model.set_reshard_after_backward(micro == last)
            losses.append(backward(model))
        optimizer.step()
        optimizer.zero_grad(set_to_none=iteration % 2 == 0)
        model.set_is_last_backward(True)
        model.set_reshard_after_backward(True)
    grads = [param.grad.full_tensor() for param in model.parameters() if param.grad is not None]
    return losses, len(grads), grads


@way(layers, lambda params: torch.optim.AdamW(params, lr=1e-2, foreach=True))
def gradients_handled(model, optimizer):
    """Gradients are looked at and changed, as DTensors and as this rank's parts of them."""
    seen = []
    for iteration in range(9):
        backward(model)
        grads = [param.grad for param in model.parameters()]
        if iteration % 3 == 0:
            nn.utils.clip_grad_value_(model.parameters(), 0.01)
        elif iteration % 3 == 1:
            grads[2].mul_(0.5)
            seen.append(grads[1].full_tensor())
            with torch.no_grad():
                grads[-1].to_local().clamp_(-0.1, 0.1)
                grads[-2]._local_tensor[:1] = 0
        optimizer.step()
        optimizer.zero_grad(set_to_none=iteration % 2 == 0)
    return seen


@way(layers)
def clipping_what_was_cleared(model, optimizer):
    """Norms of cleared gradients are asked for while updates with sums of two averages are still to come."""
    params = list(model.parameters())
    for _ in range(6):
        losses = [backward(model) for _ in range(2)]
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        nn.utils.clip_grad_norm_(params, 0.1)
    return losses


@way(layers)
def own_parts(model, optimizer):
    """A penalty on this rank's parts of parameters, whose gradients autograd adds by itself, and a kept average."""
    kept = [param.detach().clone() for param in model.parameters()]
    for iteration in range(8):
        backward(model)
        if iteration % 2:
            sum(param.to_local().square().sum() for param in model.parameters()).mul(1e-2).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=iteration % 4 < 2)
        with torch.no_grad():
            for average, param in zip(kept, model.parameters(), strict=True):
                average.lerp_(param, 0.1)
    return [each.full_tensor() for each in kept]


@way(layers)
def unsharded_by_hand(model, optimizer):
    """Layers are unsharded by hand, with and without a wait, before and after updates."""
    losses, seen = [], []
    for _ in range(6):
        handle = model[1].unshard(async_op=True)
        model[2].unshard()
        handle.wait()
        seen.append(model[1].weight.detach().clone())
        losses.append(step(model, optimizer))
        handle = model[3].unshard(async_op=True)
        handle.wait()
        seen.append(model[3].bias.detach().clone())
        model[3].reshard()
    return losses, seen


def clamped(module, inputs, output):
    output.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    return output.clone()


@way(layers)
def hooks(model, optimizer):
    """Hooks of modules and of tensors within backward, and hooks around the optimizer's step."""
    seen = []
    model[1].register_full_backward_hook(lambda module, inner, outer: (inner[0] * 0.5,))
    model[2].register_forward_hook(clamped)
    optimizer.register_step_pre_hook(lambda *_: seen.append(model[0].weight.grad.full_tensor()))
    optimizer.register_step_post_hook(lambda *_: seen.append(model[3].weight.full_tensor()))
    for _ in range(6):
        step(model, optimizer)
    return seen


@way(layers, adamw)
def checkpoint(model, optimizer):
    """A checkpoint by torch.distributed.checkpoint in mid-training, an evaluation, and a return to the checkpoint."""
    place = f"../checkpoint-{dist.get_world_size()}"
    losses, seen = [], []
    for iteration in range(8):
        losses.append(step(model, optimizer))
        if iteration == 2:
            weights, moments = get_state_dict(model, optimizer)
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=place)
        if iteration == 5:
            with torch.no_grad():
                seen.append(model(torch.ones(2, 40)))
            state = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            dcp.load(state, checkpoint_id=place)
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
        seen.extend(value.full_tensor().clone() for value in get_model_state_dict(model).values())
    return losses, seen


@way(layers, adamw)
def whole_state(model, optimizer):
    """State saved whole after some steps, and loaded into another model and its optimizer: step counts are shared."""
    other = layers()
    others_optimizer = adamw(other.parameters())
    losses = [step(model, optimizer) for _ in range(4)]
    whole = StateDictOptions(full_state_dict=True)
    weights, state = get_state_dict(model, optimizer, options=whole)
    set_state_dict(other, others_optimizer, model_state_dict=weights, optim_state_dict=state, options=whole)
    losses += [step(other, others_optimizer) for _ in range(4)]
    losses += [step(model, optimizer) for _ in range(4)]
    return losses, [param.full_tensor() for param in other.parameters()]


def with_lists():
    """Lists of what to gather ahead, for some modules only."""
    chain = [fully_shard(nn.Linear(40, 40), reshard_after_forward=place % 2 == 0) for place in range(6)]
    chain[0].set_modules_to_forward_prefetch(chain[1:4])
    chain[5].set_modules_to_backward_prefetch([chain[4], chain[3]])
    return fully_shard(nn.Sequential(*chain, nn.Linear(40, 7)), reshard_after_forward=True)


@way(with_lists, adamw)
def lists_changed(model, optimizer):
    losses = []
    for iteration in range(8):
        if iteration == 4:
            model[0].set_modules_to_forward_prefetch([])
            model[2].set_modules_to_forward_prefetch([model[3]])
            model[1].set_reshard_after_forward(True)
            model[5].set_unshard_in_backward(True)
        losses.append(step(model, optimizer))
    return losses


@way(layers)
def own_reductions(model, optimizer):
    """Some layers get a reduction of the program's own in mid-training."""
    losses = []
    for iteration in range(6):
        if iteration == 3:
            for layer in model[:2]:
                layer.set_custom_reduce_scatter(DefaultReduceScatter())
        losses.append(step(model, optimizer))
    return losses


@way(layers, adamw)
def frozen_between(model, optimizer):
    """A weight is frozen between the batches of an accumulation, so it has a gradient of the first alone."""
    seen = []
    for iteration in range(6):
        model.set_requires_gradient_sync(False)
        backward(model)
        weight = model[iteration % 4].weight.requires_grad_(iteration % 3 == 2)
        model.set_requires_gradient_sync(True)
        backward(model)
        seen.append(weight.grad.to_local().clone())
        optimizer.step()
        optimizer.zero_grad()
        weight.requires_grad_(True)
    return seen


class Parts(nn.Module):
    """Three layers of one size, of which a program uses some."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(40, 40) for _ in range(3))
        self.head = nn.Linear(40, 7)

    def forward(self, inputs, used):
        for place in used:
            inputs = self.layers[place](inputs).relu()
        return self.head(inputs)


def one_group_and_a_head():
    model = Parts()
    fully_shard(model.head)
    return fully_shard(model)


@way(one_group_and_a_head, adamw)
def frozen_for_an_unused_one(model, optimizer):
    """A frozen layer's gradient of an earlier batch takes the place of another one's, of the same size."""
    seen = []
    for iteration in range(6):
        model.zero_grad()
        for frozen, last in ((False, False), (iteration % 2 == 0, True), (False, True))[: 2 + iteration % 3 // 2]:
            model.set_requires_gradient_sync(last)
            model.layers[2].requires_grad_(not frozen)
            backward(model, (1,) if frozen else (1, 2))
        if iteration > 2:
            seen.append([None if param.grad is None else param.grad.to_local().clone() for param in model.parameters()])
        model.layers[2].requires_grad_(True)
        optimizer.step()
    return seen


def reduced_in(name, sums=False, **types):
    """Gradients are reduced in the parameters' type, in half precision, or only summed."""
    policy = MixedPrecisionPolicy(**types)

    def build():
        head = fully_shard(nn.Linear(40, 7), mp_policy=policy)
        model = fully_shard(nn.Sequential(*parts(mp_policy=policy), head), mp_policy=policy)
        for module in model.modules():
            if sums and hasattr(module, "set_force_sum_reduction_for_comms"):
                module.set_force_sum_reduction_for_comms(True)
        return model

    def train(model, optimizer):
        for iteration in range(5):
            for _ in range(1 + iteration % 2):
                backward(model)
            optimizer.step()
            optimizer.zero_grad()

    train.__name__ = name
    way(build)(train)


reduced_in("single_precision", param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
reduced_in("half_precision", param_dtype=torch.bfloat16, output_dtype=torch.float32)
reduced_in("float16", param_dtype=torch.float16, cast_forward_inputs=True)
reduced_in("sums", sums=True)
run_fsdp()
