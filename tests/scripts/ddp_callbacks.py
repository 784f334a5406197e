"""Callbacks queued for the end of a backward pass: after the reducer's own they find averages in `.grad`."""

import torch
from ways import adam, backward, run_ddp, train, way


def queue(callback):
    torch.autograd.Variable._execution_engine.queue_callback(callback)


def at_the_end(ddp, callback):
    """Call `callback` at the end of each backward pass, after all that is queued within it."""
    last = next(ddp.parameters())
    last.register_post_accumulate_grad_hook(lambda _: queue(lambda: queue(callback)))


@way(make=adam)
def gradients_read(ddp, optimizer):
    """And before the averages are there, in a callback that was queued first."""
    params, seen = list(ddp.parameters()), []

    def look():
        seen.extend(p.grad.sum().item() for p in params)

    params[-1].register_post_accumulate_grad_hook(lambda _: queue(look))
    at_the_end(ddp, look)
    return [train(ddp, optimizer) for _ in range(6)], seen


@way()
def gradients_written(ddp, optimizer):
    def clip():
        for p in ddp.parameters():
            p.grad.clamp_(-0.01, 0.01)

    at_the_end(ddp, clip)
    return [train(ddp, optimizer) for _ in range(6)]


@way(make=adam)
def stepped(ddp, optimizer):
    at_the_end(ddp, optimizer.step)
    losses = []
    for _ in range(6):
        optimizer.zero_grad()
        losses.append(backward(ddp))
    return losses, optimizer.state_dict()


@way()
def stepped_after_a_node(ddp, optimizer):
    """By a hook of the node that adds to `.grad`, which comes after the reducer's."""
    first = next(ddp.parameters())
    node = first.view_as(first).grad_fn.next_functions[0][0]
    node.register_hook(lambda *_: queue(optimizer.step))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        losses.append(backward(ddp))
    return losses


run_ddp()
