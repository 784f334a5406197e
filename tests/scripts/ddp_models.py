"""Modules of many kinds: types, classes of parameters, buffers, static graphs, and evaluations in between."""

import copy
import io
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from ways import adam, backward, batch, loss_of, run_ddp, train, way


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(32, 48)
        self.second = nn.Linear(48, 64).double()
        self.third = nn.Linear(64, 48).to(torch.bfloat16)
        self.fourth = nn.Linear(48, 10).half()

    def forward(self, inputs):
        hidden = self.second(self.first(inputs.float()).relu().double()).relu()
        return self.fourth(self.third(hidden.to(torch.bfloat16)).relu().half())


def of_type(ddp, optimizer):
    dtype = next(ddp.parameters()).dtype
    return [train(lambda inputs: ddp(inputs.to(dtype)).float(), optimizer) for _ in range(6)]


@way(Mixed)
def mixed_types(ddp, optimizer):
    return of_type(ddp, optimizer)


@way(lambda: nn.Linear(32, 10).double())
def double(ddp, optimizer):
    return of_type(ddp, optimizer)


@way(lambda: nn.Linear(32, 10).half())
def half(ddp, optimizer):
    return of_type(ddp, optimizer)


@way(lambda: nn.Linear(32, 10).to(torch.bfloat16))
def bfloat16(ddp, optimizer):
    return of_type(ddp, optimizer)


class Tagged(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        return super().__torch_function__(func, types, args, kwargs or {})


class Kind(nn.Parameter):
    pass


class Layer(nn.Module):
    def __init__(self, ins, outs, make):
        super().__init__()
        self.weight = make(torch.randn(outs, ins) / 8)
        self.bias = nn.Parameter(torch.zeros(outs))

    def forward(self, inputs):
        return nn.functional.linear(inputs, self.weight, self.bias)


def layers(make):
    return nn.Sequential(Layer(32, 96, make), nn.ReLU(), Layer(96, 10, make))


def clipped(ddp, optimizer):
    losses = []
    for iteration in range(8):
        optimizer.zero_grad()
        losses.append(backward(ddp))
        if iteration % 3 == 1:
            nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)
        optimizer.step()
    return losses


@way(lambda: layers(lambda tensor: nn.Parameter(tensor.as_subclass(Tagged))), torch.optim.AdamW)
def own_tensors(ddp, optimizer):
    return clipped(ddp, optimizer)


@way(lambda: layers(Kind), torch.optim.AdamW)
def own_parameters(ddp, optimizer):
    return clipped(ddp, optimizer)


class Counting(nn.Module):
    """Batch statistics, and a step counter kept in a buffer."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(10))

    def forward(self, images):
        outputs = self.body(images)
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * outputs.detach().mean(0)
        return outputs - self.mean


def statistics(ddp, optimizer):
    for _ in range(6):
        optimizer.zero_grad()
        loss_of(ddp, torch.randn(8, 3, 8, 8), torch.randint(10, (8,))).backward()
        optimizer.step()
    return list(ddp.buffers())


@way(Counting)
def buffers(ddp, optimizer):
    return statistics(ddp, optimizer)


@way(Counting, forward_sync_buffers=False)
def buffers_of_each_rank(ddp, optimizer):
    return statistics(ddp, optimizer)


@way(Counting, init_sync=True, gradient_as_bucket_view=True)
def buffers_beside_bucket_views(ddp, optimizer):
    return statistics(ddp, optimizer)


class Blocks(nn.Module):
    """Blocks with re-entrant checkpoints, one of them used twice."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(32, 64)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(3)])
        self.unused = nn.Linear(3, 3)
        self.head = nn.Linear(64, 10)

    def forward(self, inputs):
        hidden = self.stem(inputs)
        for block in (*self.blocks, self.blocks[0]):
            hidden = checkpoint(block, hidden, use_reentrant=True)
        return self.head(hidden)


@way(Blocks, torch.optim.AdamW, static_graph=True)
def static_graph(ddp, optimizer):
    return [train(ddp, optimizer) for _ in range(7)]


def static_later(module):
    ddp = DistributedDataParallel(module)
    ddp._set_static_graph()
    return ddp


@way(Blocks, torch.optim.AdamW, wrap=static_later)
def static_graph_set_later(ddp, optimizer):
    return [train(ddp, optimizer) for _ in range(7)]


@way()
def passes_by_the_first_rank(ddp, optimizer):
    """Forward passes of the wrapper by the first rank alone, as in an evaluation that forgets to disable gradients. One
    follows a backward pass that averages nothing.
    """
    losses = []
    for iteration in range(40):
        losses.append(train(ddp, optimizer))
        with ddp.no_sync():
            losses.append(backward(ddp))
        if dist.get_rank() == 0 and iteration > 0:  # In its second pass torch's reducer communicates.
            losses.append(loss_of(ddp, *batch()).item())
        dist.barrier()
    return losses


@way()
def several_forward_passes(ddp, optimizer):
    """Several forward passes before one backward pass."""
    losses = []
    for _ in range(7):
        inputs, labels = batch()
        optimizer.zero_grad()
        loss = loss_of(ddp, inputs, labels) + loss_of(ddp, inputs.flip(1), labels)
        loss.backward(retain_graph=True)
        losses.append(loss.item())
        optimizer.step()
    return losses


class Gaps(nn.Module):
    """Parameters that are parts of larger tensors, one of them across; and a scalar."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(32, 24)
        self.columns = nn.Parameter(torch.randn(24, 20)[:, ::2])
        self.rows = nn.Parameter(torch.randn(20, 24).t()[:, ::2])
        self.scale = nn.Parameter(torch.tensor(0.1))

    def forward(self, inputs):
        hidden = self.stem(inputs)
        return self.scale * (hidden @ self.columns) + 0.1 * (hidden @ self.rows)


@way(Gaps)
def gaps(ddp, optimizer):
    """Momentum lies in memory as gradients do."""
    losses = [train(ddp, optimizer) for _ in range(6)]
    return losses, [own["momentum_buffer"].stride() for own in optimizer.state.values()]


def twice():
    block = nn.Linear(48, 48)
    wide = [nn.Sequential(nn.Linear(48, 192), nn.ReLU(), nn.Linear(192, 48)) for _ in range(2)]
    return nn.Sequential(nn.Linear(32, 48), block, wide[0], block, wide[1], block, nn.Linear(48, 10))


@way(twice)
def autocast(ddp, optimizer):
    """It casts the block's weight once, and sums its gradients in half precision."""
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(ddp, *batch())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


class Attentive(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 48, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.attention = nn.MultiheadAttention(32, 4, batch_first=True)
        self.head = nn.Linear(32, 10)

    def forward(self, inputs):
        hidden = self.encoder(inputs[:, None].expand(-1, 3, -1))
        return self.head(self.attention(hidden, hidden, hidden)[0].sum(1))


@way(Attentive)
def evaluated(ddp, optimizer):
    """torch then computes such modules in another way, as a whole and one by one."""
    outputs = []
    for _ in range(6):
        train(ddp, optimizer)
        ddp.eval()
        with torch.no_grad():
            outputs.append(ddp.module.encoder.layers[1](torch.ones(1, 3, 32)))
            outputs.append(ddp.module(torch.ones(2, 32)))
        train(ddp.train(), optimizer)
        with torch.inference_mode():
            outputs.append(ddp.module.eval()(torch.ones(2, 32)).clone())
        ddp.train()
    return outputs


@way(make=lambda params: torch.optim.Adam(params, lr=1e-2, fused=True))
def gradients_laid_out_otherwise(ddp, optimizer):
    """Gradients of the program's own, whose memory is in another order than the parameter's."""
    for param in ddp.parameters():
        param.grad = torch.zeros(param.shape[::-1]).t()
    losses = []
    for _ in range(8):
        optimizer.zero_grad(set_to_none=False)
        losses.append(backward(ddp))
        optimizer.step()
    return losses


def saved(module):
    buffer = io.BytesIO()
    torch.jit.save(module, buffer)
    buffer.seek(0)
    return torch.jit.load(buffer)


def saved_to_a_file(module):
    module.save("model.pt")
    return torch.jit.load("model.pt")


@way(make=adam)
def scripted(ddp, optimizer):
    """A module in TorchScript that shares its parameters is saved, copied and made faster right after a step."""
    module = torch.jit.script(ddp.module).eval()
    held_out, scores = torch.ones(4, 32), []
    makes = (
        saved,
        saved_to_a_file,
        lambda module: torch.jit.load(io.BytesIO(module.save_to_buffer())),
        copy.deepcopy,
        lambda module: torch.jit.optimize_for_inference(torch.jit.freeze(module)),
        torch.jit.optimize_for_inference,
    )
    for make in 3 * makes:
        train(ddp, optimizer)
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            scores.append(make(module)(held_out).logsumexp(1).mean().item())
    return scores


run_ddp()
