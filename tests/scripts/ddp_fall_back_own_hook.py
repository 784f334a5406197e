"""Hooks of the user's own, registered after some steps: for gradients, also of a static graph, and for buffers."""

import torch.distributed as dist
from ways import normed, run_ddp, train, way


def signs(state, bucket):
    future = dist.all_reduce(bucket.buffer().sign_(), async_op=True).get_future()
    return future.then(lambda future: future.value()[0] / dist.get_world_size())


def signs_later(ddp, optimizer):
    losses = [train(ddp, optimizer) for _ in range(4)]
    ddp.register_comm_hook(None, signs)
    return losses, [train(ddp, optimizer) for _ in range(4)], optimizer.state_dict()


@way()
def hook(ddp, optimizer):
    return signs_later(ddp, optimizer)


@way(static_graph=True)
def static_graph(ddp, optimizer):
    return signs_later(ddp, optimizer)


def average(state, buffers):
    means = [buffer for name, buffer in buffers.items() if name.endswith("running_mean")]
    return [dist.all_reduce(mean, async_op=True).get_future() for mean in means]


@way(normed)
def buffers(ddp, optimizer):
    for _ in range(3):
        train(ddp, optimizer)
    ddp._register_buffer_comm_hook(None, average)
    for _ in range(3):
        train(ddp, optimizer)
    return list(ddp.buffers())


run_ddp()
