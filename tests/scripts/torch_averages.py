"""Copies and averages of the whole model that follow it, or take its place for a while."""

import copy
import io

import byteps.torch as bps
import torch
from torch import nn
from torch.optim.swa_utils import SWALR, AveragedModel, get_ema_multi_avg_fn, update_bn
from ways import adam, batch, loss_of, normed, run_byteps, sgd, train, way


@way(normed, adam)
def moving_average_of_state_dict(model, optimizer):
    """Buffers included, and evaluated."""
    average, scores = copy.deepcopy(model).eval(), []
    for _ in range(6):
        train(model, optimizer)
        with torch.no_grad():
            for kept, current in zip(average.state_dict().values(), model.state_dict().values(), strict=True):
                kept.copy_(0.9 * kept + 0.1 * current)
            scores.append(average(batch()[0]).logsumexp(1).mean().item())
    return average, scores


@way(normed)
def stochastic_averages(model, optimizer):
    """And a moving average of torch's."""
    averaged, seen = AveragedModel(model), []
    moving = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    scheduler = SWALR(optimizer, swa_lr=0.05, anneal_epochs=3)
    for iteration in range(6):
        train(model, optimizer)
        seen.append(batch()[0])
        moving.update_parameters(model)
        if iteration >= 2:
            averaged.update_parameters(model)
            scheduler.step()
    update_bn(seen, averaged)
    return averaged, list(moving.module.parameters())


@way()
def averages_by_groups(model, optimizer):
    """They take the model's place at the end."""
    averages = {}
    for iteration in range(6):
        train(model, optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                average = averages.setdefault(p, torch.zeros_like(p.data))
                average.add_((p.data - average) / (iteration + 1))
    for group in optimizer.param_groups:
        for p in group["params"]:
            averages[p], p.data = p.data.clone(), averages[p].clone()
    return list(averages.values())


@way(make=adam)
def averages_swapped_in(model, optimizer):
    """For an evaluation, and out again."""
    shadow = {p: p.detach().clone() for group in optimizer.param_groups for p in group["params"]}
    scores = []
    for _ in range(6):
        train(model, optimizer)
        with torch.no_grad():
            for p, average in shadow.items():
                average.lerp_(p, 0.2)
            backup = {p: p.clone() for p in shadow}
            for p, average in shadow.items():
                p.copy_(average)
            scores.append(model(batch()[0]).logsumexp(1).mean().item())
            for p, old in backup.items():
                p.copy_(old)
    return scores, list(shadow.values())


@way(make=adam)
def lookahead(model, optimizer):
    """Every second step the weights go half way back to slow ones."""
    slow = [[p.clone().detach() for p in group["params"]] for group in optimizer.param_groups]
    for iteration in range(6):
        train(model, optimizer)
        if iteration % 2:
            for group, slow_weights in zip(optimizer.param_groups, slow, strict=True):
                for p, kept in zip(group["params"], slow_weights, strict=True):
                    kept.add_(p.data - kept, alpha=0.5)
                    p.data.copy_(kept)
    return slow


@way(make=lambda params: torch.optim.SGD(params, lr=0.1))
def back_half_way(model, optimizer):
    """By the model's own parameters, to where they were some steps ago."""
    for _ in range(3):
        before = {name: p.data.clone() for name, p in model.named_parameters()}
        for _ in range(3):
            train(model, optimizer)
        for name, p in model.named_parameters():
            p.data = before[name] + (p.data - before[name]) * 0.5


@way()
def momentum_encoder(model, optimizer):
    """Momentum contrast: the key encoder follows the query encoder."""
    key_model = copy.deepcopy(model).requires_grad_(False)
    losses = []
    for _ in range(6):
        views = torch.randn(2, 16, 32)
        with torch.no_grad():
            for key, query in zip(key_model.parameters(), model.parameters(), strict=True):
                key.data = key.data * 0.9 + query.data * 0.1
            keys = nn.functional.normalize(key_model(views[1]))
        logits = nn.functional.normalize(model(views[0])) @ keys.T / 0.2
        loss = nn.functional.cross_entropy(logits, torch.arange(16))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, key_model


@way(make=lambda params: torch.optim.SGD(params, lr=0.5, momentum=0.9))
def back_to_the_best(model, optimizer):
    """Whenever the loss grows, by copies of the state_dict of model and optimizer."""
    best, kept, losses = float("inf"), None, []
    held_out = torch.randn(32, 32, generator=torch.Generator().manual_seed(3)), torch.arange(32) % 10
    for _ in range(8):
        train(model, optimizer)
        with torch.no_grad():
            loss = loss_of(model, *held_out).item()
        if loss < best:
            best, kept = loss, copy.deepcopy([model.state_dict(), optimizer.state_dict()])
        else:
            model.load_state_dict(kept[0])
            optimizer.load_state_dict(kept[1])
        losses.append(loss)
    return losses


@way()
def saved_whole(model, optimizer):
    """By the first rank, right after a step; both keep a deep copy of the best."""
    best, best_model, saved = float("inf"), None, []
    for _ in range(6):
        loss = train(model, optimizer)
        if bps.rank() == 0:
            buffer = io.BytesIO()
            torch.save(model, buffer)
            buffer.seek(0)
            saved.append(torch.load(buffer, weights_only=False).state_dict())
        if loss < best:
            best, best_model = loss, copy.deepcopy(model)
    return best_model, saved


@way(normed, sgd)
def evaluated_by_the_first_rank(model, optimizer):
    """In the middle, while the other goes on."""
    held_out, scores = torch.randn(64, 32), []
    for iteration in range(8):
        model.train()
        train(model, optimizer)
        if bps.rank() == 0 and iteration % 3 == 2:
            model.eval()
            with torch.inference_mode():
                scores.append(model(held_out).logsumexp(1).mean().item())
    return scores, list(model.buffers())


run_byteps()
